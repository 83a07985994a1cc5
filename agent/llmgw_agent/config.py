"""The agent's configuration file, see ``packaging/`` for an example with comments."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from llmgw_agent.install.settings import InstallSettings
from llmgw_agent.process.ports import default_range, ephemeral_range
from llmgw_agent.shard.gang.settings import GangSection
from llmgw_agent.weights.settings import WeightsSettings
from llmgw_base.config import EtcdSection, LogSection, Section, TlsSection
from llmgw_base.net import parse_listen, require_safe
from llmgw_proto.records.model import parse_bytes


def _name(value: str) -> str:
    if not value or len(value) > 200 or any(char.isspace() or char in "/\0" for char in value):
        raise ValueError(f"{value!r} is not a node name; use 1 to 200 characters without blanks and slashes")
    return value


def _size(value: str) -> str:
    parse_bytes(value)
    return value


class NodeSection(Section):
    name: Annotated[str, AfterValidator(_name)] = Field(default_factory=socket.gethostname)
    address: str = Field(default="127.0.0.1", description="by which routers and coordinators reach this host")
    labels: dict[str, str] = Field(default={}, description="for the node_selector of models")
    reserved_memory: Annotated[str, AfterValidator(_size)] = Field(
        default="512MiB", description="host memory that no engine may count on"
    )


class PortsSection(Section):
    """Ports for engines, both ends included."""

    first: int = Field(default_factory=lambda: default_range(ephemeral_range())[0], ge=1024, le=65_535)
    last: int = Field(default_factory=lambda: default_range(ephemeral_range())[1], ge=1024, le=65_535)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.last < self.first:
            raise ValueError(f"last ({self.last}) is below first ({self.first})")
        return self


class EnginesSection(Section):
    listen: str | None = Field(default=None, description="address that engines bind; None: node.address")
    ports: PortsSection = PortsSection()
    on_stop: Literal["keep", "stop"] = Field(default="keep", description="keep: engines outlive a stopped agent")
    isolation: Literal["auto", "systemd", "cgroup", "group"] = Field(
        default="auto", description="how engines are kept apart; auto: the first of the others that the node has"
    )
    kv_events: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="whether vLLM and SGLang publish what they have cached; auto: for models with the routing policy kv",
    )
    llama_server: str | None = Field(default=None, description="path of a llama-server; None: PATH, then the xllamacpp package")
    llama_rpc_server: str | None = Field(
        default=None, description="path of llama.cpp's RPC server; None: beside the llama-server, then PATH"
    )
    gang: GangSection = GangSection()
    start_seconds: float = Field(default=900, gt=0, description="how long an engine may take to become ready")
    stop_seconds: float = Field(default=10, ge=0, description="between SIGTERM and SIGKILL")
    hang_seconds: float = Field(default=30, gt=0, description="how long a suspect may stay silent before it is restarted")
    stall_seconds: float = Field(
        default=120, gt=0, description="how long requests may run without getting on before the engine is a suspect"
    )
    probe_seconds: float = Field(
        default=60, gt=0, description="an engine that has no known metrics is asked for a token when it was idle for so long"
    )
    install: InstallSettings = Field(default={}, description="engines that the agent installs when a model needs them")


class RestartSection(Section):
    """How often a failing engine is started again."""

    attempts: int = Field(default=5, ge=1, description="failures within interval_seconds before the breaker opens")
    interval_seconds: float = Field(default=600, gt=0)
    first_delay: float = Field(default=1, gt=0)
    longest_delay: float = Field(default=60, gt=0)
    cooldown_seconds: float = Field(default=600, gt=0, description="after which an open breaker allows one more attempt")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.longest_delay < self.first_delay:
            raise ValueError(f"longest_delay ({self.longest_delay}) is below first_delay ({self.first_delay})")
        return self


class LogsSection(Section):
    """Engine logs; a shard's logs use at most files times max_bytes."""

    max_bytes: Annotated[str, AfterValidator(_size)] = "16MiB"
    files: int = Field(default=4, ge=1, le=100)
    keep_removed: int = Field(default=20, ge=0, description="removed shards whose logs are kept")


class MetricsSection(Section):
    listen: str | None = Field(
        default="127.0.0.1:9310", description="where Prometheus reads /metrics; null: nowhere; port 0 takes any free one"
    )


class AgentConfig(Section):
    node: NodeSection = Field(default_factory=NodeSection)
    state_dir: Path = Path("/var/lib/llmgw/agent")
    etcd: EtcdSection = EtcdSection()
    listen: str = Field(default="127.0.0.1:7090", description="gRPC service; port 0 takes any free one")
    tls: TlsSection | None = Field(default=None, description="for the gRPC service, mutually authenticated")
    insecure: bool = Field(default=False, description="allow plaintext to other machines")
    lease_ttl: float = Field(default=10, ge=2, le=600, description="seconds after which a silent agent counts as gone")
    engines: EnginesSection = Field(default_factory=EnginesSection)
    restart: RestartSection = RestartSection()
    logs: LogsSection = LogsSection()
    weights: WeightsSettings = WeightsSettings()
    metrics: MetricsSection = MetricsSection()
    log: LogSection = LogSection()

    @model_validator(mode="after")
    def _safe(self) -> Self:
        listen = parse_listen(self.listen)
        require_safe(listen, tls=self.tls is not None, insecure=self.insecure)
        require_safe(parse_listen(f"{_bracket(self.engine_host)}:0"), tls=False, insecure=self.insecure, key="engines.listen")
        if self.engines.gang.address is not None:
            listen = parse_listen(f"{_bracket(self.engines.gang.address)}:0")
            require_safe(listen, tls=False, insecure=self.insecure, key="engines.gang.address")
        if self.metrics.listen is not None:
            key = "metrics.listen"
            metrics = parse_listen(self.metrics.listen, key=key)
            require_safe(metrics, tls=self.tls is not None, insecure=self.insecure, key=key)
        if self.weights.peers.listen is not None:
            key = "weights.peers.listen"
            peers = parse_listen(self.weights.peers.listen, key=key)
            require_safe(peers, tls=self.tls is not None, insecure=self.insecure, key=key)
        return self

    @property
    def engine_host(self) -> str:
        """The address that engines bind."""
        return self.engines.listen or self.node.address

    @property
    def gang_address(self) -> str:
        """By which engines on other nodes reach those on this one."""
        return self.engines.gang.address or self.node.address


def _bracket(host: str) -> str:
    return f"[{host}]" if ":" in host else host
