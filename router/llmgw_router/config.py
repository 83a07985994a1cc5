"""The router's configuration; docs/router.md explains every key."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from llmgw_base.config import EtcdSection, LogSection, Section
from llmgw_proto.records import Capability
from llmgw_router.policies import names


def _policy(value: str) -> str:
    if value not in names():
        raise ValueError(f"there is no policy {value!r}; choose one of {', '.join(names())}")
    return value


PolicyName = Annotated[str, AfterValidator(_policy)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]


class ServerTls(Section):
    """PEM files that clients see."""

    cert: Path
    key: Path


class Limits(Section):
    """What one client may cost."""

    body_bytes: int = Field(default=16 * 2**20, ge=1024, description="largest request body; more is 413")
    buffered_bytes: int = Field(default=512 * 2**20, ge=2**20, description="of bodies held at once by one worker; more is 503")
    head_bytes: int = Field(default=65_536, ge=1024, le=2**20, description="request line and header fields; more is 431")
    header_fields: int = Field(default=100, ge=8, le=1000)
    head_seconds: Seconds = Field(default=10, description="from the first byte of a request to the end of its head")
    body_grace_seconds: Seconds = Field(default=10, description="after this, a body must keep the minimum rate")
    body_bytes_per_second: int = Field(default=1024, ge=1, description="minimum average rate of a body")
    keep_alive_seconds: Seconds = Field(default=75, description="how long an idle client connection is kept")
    connections: int | None = Field(default=None, ge=1, description="per worker; None takes what the open file limit allows")
    connections_per_address: int | None = Field(default=None, ge=1, description="per worker; None: no limit")
    write_buffer_bytes: int = Field(default=262_144, ge=4096, description="for one slow client, before the engine is paused")


class Timeouts(Section):
    """How long an engine may take, in seconds."""

    connect: Seconds = Field(default=1.4, description="long enough for one lost SYN, short enough for two tries in 3 s")
    first_byte: Seconds = Field(default=600, description="from the request's last byte to the answer's first")
    idle: Seconds = Field(default=120, description="between two bytes of an answer")
    total: Seconds = Field(default=3600, description="of one answer")
    engine_keep_alive: Seconds = Field(default=4, description="idle engine connections; below uvicorn's 5 s")


class HealthSection(Section):
    """When a replica is not trusted."""

    failures: int = Field(
        default=3, ge=1, description="failed answers in a row that eject a replica; a refused connection does at once"
    )
    ejection_seconds: Seconds = Field(default=2, description="the first ejection; it doubles each time")
    ejection_max_seconds: Seconds = 60
    panic_percent: int = Field(default=50, ge=0, le=100, description="when fewer replicas than this are left, all are used")
    probe_seconds: Seconds = Field(default=2, description="between two probes of a suspect")
    probe_timeout: Seconds = 1.5
    probe_failures: int = Field(default=3, ge=1, description="missed probes that eject")
    probe_path: str = Field(default="/health", pattern=r"^/[!-~]*$")
    probe_all: bool | None = Field(
        default=None, description="probe every replica, not only suspects; None: with --endpoint only"
    )
    silent_seconds: Seconds = Field(default=1.5, description="a replica with requests and no byte for this long is a suspect")
    keep_vanished_seconds: Seconds = Field(
        default=600, description="how long an endpoint that vanished without draining is kept while it answers probes"
    )


class QueueSection(Section):
    """Requests that wait while every replica of their model is at its limit."""

    length: int = Field(default=256, ge=0, le=100_000, description="per model; more is 429")
    seconds: Seconds = Field(default=30, description="longest wait; then 503")
    priorities: dict[str, Literal["high", "normal", "low"]] = Field(
        default={}, description="API key name to the highest priority it may ask for; normal for the rest"
    )


class DrainSection(Section):
    """SIGTERM: not ready at once, then this."""

    lame_duck_seconds: float = Field(default=1, ge=0, le=600, description="goes on accepting, so that load balancers notice")
    seconds: float = Field(default=30, ge=0, le=86_400, description="for requests in flight, then they are cut")


class CorsSection(Section):
    origins: list[str] = Field(default=["*"], description="origins that browsers may call from; empty switches CORS off")


class AccountingSection(Section):
    stream_usage: Literal["auto", "always", "never"] = Field(
        default="auto", description="ask engines for the usage of streams; auto: when API keys are in use"
    )
    access_log: Literal["off", "errors", "all"] = "errors"


class EndpointSection(Section):
    """An endpoint in long form, where ``id=URL=model`` does not say enough."""

    id: str = Field(min_length=1)
    url: str
    models: list[str] = Field(min_length=1)
    served_name: str | None = Field(default=None, description="what the engine calls the model; only with one model")
    capabilities: list[Capability] | None = Field(default=None, description="None: everything may be asked of it")
    weight: int = Field(default=100, ge=0, le=10_000)
    max_concurrency: int | None = Field(default=None, ge=1, description="requests at once; more wait in the queue")

    @model_validator(mode="after")
    def _one_name(self) -> Self:
        if self.served_name is not None and len(self.models) != 1:
            raise ValueError("served_name goes with exactly one model; write an endpoint for each model")
        return self


def _form(value: object) -> str:
    return "short form" if isinstance(value, str) else "long form"


# Told apart by what was written, so that an error speaks of that form only.
Endpoint = Annotated[
    Annotated[str, Tag("short form")] | Annotated[EndpointSection, Tag("long form")],
    Discriminator(_form),
]


class RouterConfig(Section):
    listen: str = "127.0.0.1:8080"
    workers: int | Literal["auto"] = Field(default=1, description="processes; auto: one per core")
    id: str | None = Field(default=None, description="None: host name and port")
    advertise: str | None = Field(default=None, description="URL that others reach this router under")
    insecure: bool = Field(default=False, description="plaintext to other machines is wanted")
    tls: ServerTls | None = None
    etcd: EtcdSection | None = Field(default=None, description="None: only the endpoints named here")
    endpoints: list[Endpoint] = Field(
        default=[], description="id=URL=model[,model], or the long form; with these, no etcd is used"
    )
    api_keys: Path | None = Field(default=None, description="a file of name:key lines; None: every client is served")
    state_dir: Path | None = Field(default=None, description="where the last known table is kept for a start without etcd")
    policy: PolicyName = "least_loaded"
    policies: dict[str, PolicyName] = Field(default={}, description="model to policy")
    session_header: str = Field(default="x-session-id", pattern=r"^[A-Za-z0-9-]+$")
    prefix_memory_bytes: int = Field(default=64 * 2**20, ge=2**16, description="per model, for policy prefix")
    limits: Limits = Limits()
    timeouts: Timeouts = Timeouts()
    health: HealthSection = HealthSection()
    queue: QueueSection = QueueSection()
    drain: DrainSection = DrainSection()
    cors: CorsSection = CorsSection()
    accounting: AccountingSection = AccountingSection()
    log: LogSection = LogSection()

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        if self.workers != "auto" and not 1 <= self.workers <= 1024:
            raise ValueError(f"workers: {self.workers} is not between 1 and 1024; or say auto")
        if self.endpoints and self.etcd is not None:
            raise ValueError("endpoints and etcd exclude each other; remove one of them")
        if not self.endpoints and self.etcd is None:
            raise ValueError(
                "there is nothing to route to; name engines with --endpoint id=URL=model, or the store with etcd.endpoints"
            )
        if (
            self.etcd is not None
            and not self.insecure
            and self.etcd.tls is None
            and any(each.startswith("http://") for each in self.etcd.endpoints)
        ):
            raise ValueError("etcd is reached in plaintext; use https:// endpoints with etcd.tls, or say insecure: true")
        return self
