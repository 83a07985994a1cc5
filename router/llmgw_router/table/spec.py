"""What a source says about one endpoint. Plain data."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from llmgw_proto.records import EndpointRecord
from llmgw_router.errors import TableError

_VISIBLE = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int
    tls: bool = False

    @property
    def authority(self) -> str:
        """For the Host field."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.authority}"


@dataclass(frozen=True, slots=True)
class EndpointSpec:
    id: str
    address: Address
    models: tuple[str, ...]
    key: str | None = None
    """The engine's own API key."""
    served_name: str | None = None
    """What the engine calls the model, where that differs. Only for endpoints of one model."""
    capabilities: frozenset[str] | None = None
    """None: everything may be asked of it, and its own answer counts."""
    weight: int = 100
    max_concurrency: int | None = None
    draining: bool = False
    policy: str | None = None
    max_model_len: int | None = None
    node: str = ""
    epoch: int = 0
    vanished: bool = False
    """Its record is gone without draining; kept while it answers probes."""

    @property
    def identity(self) -> tuple[object, ...]:
        """When this changes, it is another engine: new connections, a clean record."""
        return self.id, self.address, self.epoch, self.key


def parse_url(text: str) -> tuple[Address, str | None]:
    """Reads ``http://:KEY@host:port``: the address and the engine's key, if any.

    Raises:
        TableError: not such a URL.
    """
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise TableError(f"{text!r} is not a URL: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise TableError(f"{_shown(text)!r} is not an engine's URL; write http://host:port")
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise TableError(f"{_shown(text)!r} has a path; engines are reached at their root, so write http://host:port")
    key = unquote(parts.password) if parts.password else None
    if key is not None and not _VISIBLE.fullmatch(key):
        raise TableError(f"the key in {_shown(text)!r} has characters that cannot stand in a header")
    tls = parts.scheme == "https"
    return Address(parts.hostname, port if port is not None else (443 if tls else 80), tls), key


def parse_endpoint(text: str) -> EndpointSpec:
    """Reads ``id=URL=model[,model]``.

    Raises:
        TableError: not of this form; the message says what is missing.
    """
    name, first, rest = text.partition("=")
    url, second, models = rest.rpartition("=")
    names = tuple(each.strip() for each in models.split(",") if each.strip())
    if not (first and second and name.strip() and names):
        raise TableError(f"endpoint {_shown(text)!r}: write it as id=URL=model, for example e1=http://127.0.0.1:9000=my-model")
    address, key = parse_url(url)
    return EndpointSpec(name.strip(), address, names, key)


def from_record(record: EndpointRecord, key: str | None) -> EndpointSpec:
    """The spec for a record of the store.

    Raises:
        TableError: its URL cannot be used.
    """
    address, own_key = parse_url(record.url)
    return EndpointSpec(
        id=record.replica,
        address=address,
        models=(record.model,),
        key=own_key or key,
        served_name=record.served_name if record.served_name != record.model else None,
        capabilities=frozenset(record.capabilities) if record.capabilities else None,
        weight=record.weight,
        max_concurrency=record.max_concurrency,
        draining=record.draining,
        policy=record.policy,
        max_model_len=record.max_model_len,
        node=record.node,
        epoch=record.epoch,
    )


def _shown(text: str) -> str:
    """Without the key."""
    return re.sub(r"://[^/@]*@", "://…@", text)
