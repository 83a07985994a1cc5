"""The ``weights:`` section of an agent's configuration."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, model_validator

from llmgw_base.config import Section
from llmgw_proto.records.model import parse_bytes


def _network(value: str) -> str:
    try:
        return str(ipaddress.ip_network(value))
    except ValueError:
        raise ValueError(f"{value!r} is not a network; write 10.0.0.0/8, or one address such as 192.0.2.7/32") from None


def _base_url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"{value!r} is not a base URL; write https://host/path")
    return value.rstrip("/")


BaseUrl = Annotated[str, AfterValidator(_base_url)]
Network = Annotated[str, AfterValidator(_network)]


def _rate(value: str) -> str:
    if parse_bytes(value) < 1:
        raise ValueError(f"{value!r} is no rate; write for example 512MiB, or null for no limit")
    return value


class PeersSection(Section):
    """Agents of a cluster give weights to each other before they ask the internet."""

    enabled: bool = Field(default=True, description="false: neither ask other agents nor give them anything")
    listen: str | None = Field(
        default=None, description="where other agents fetch from; null: node.address and any free port, published in etcd"
    )
    max_streams: int = Field(
        default=8, ge=1, le=1000, description="files given at a time; who comes later waits or asks others"
    )
    bytes_per_second: Annotated[str, AfterValidator(_rate)] | None = Field(
        default="512MiB", description="given to all askers together; null: no limit"
    )
    wait_seconds: float = Field(
        default=60,
        gt=0,
        description="how long another agent that fetches the same may get no further before it is not waited for",
    )

    @property
    def rate(self) -> int | None:
        return parse_bytes(self.bytes_per_second) if self.bytes_per_second is not None else None


class WeightsSettings(Section):
    """Where weights come from, and how much of the disk and network they may use."""

    dir: Path | None = Field(default=None, description="where weights are kept; null: the folder weights in state_dir")
    limit_bytes: int | None = Field(
        default=None, ge=0, description="least recently used weights are removed beyond this; None is no limit but the disk's"
    )
    reserve_bytes: int = Field(default=2 << 30, ge=0, description="room on the disk that downloads leave to everything else")
    stale_seconds: float = Field(
        default=7 * 86_400, gt=0, description="an unfinished download untouched for so long is removed"
    )

    hub_endpoint: BaseUrl = "https://huggingface.co"
    hub_token: SecretStr | None = None
    hub_token_file: Path | None = Field(default=None, description="read at each use, so that it can be replaced")
    mirror: BaseUrl | None = Field(default=None, description="the fleet's own mirror, asked before the internet")
    allow_networks: list[Network] = Field(
        default=[], description="private, loopback or link-local networks that sources may lead to"
    )
    ca_file: Path | None = Field(default=None, description="certificate authorities to trust instead of the system's")

    peers: PeersSection = PeersSection()

    proxy: BaseUrl | None = Field(default=None, description="HTTP proxy for sources; other agents are reached directly")
    no_proxy: list[str] = Field(default=[], description="hosts, and domains with a leading dot, that are reached directly")

    parallel_files: int = Field(default=4, ge=1, le=64)
    connect_seconds: float = Field(default=10, gt=0)
    idle_seconds: float = Field(default=60, gt=0, description="a connection that sends nothing for so long is given up")
    min_bytes_per_second: int = Field(
        default=4096, ge=0, description="a connection slower than this over idle_seconds is given up"
    )
    attempts: int = Field(default=6, ge=1, description="tries at one place without a single new byte before it is given up")

    @model_validator(mode="after")
    def _plain_proxy(self) -> Self:
        if self.proxy is not None and not self.proxy.startswith("http://"):
            raise ValueError(f"proxy {self.proxy!r} must be http://host:port; what goes through it may be https")
        return self

    def token(self) -> str | None:
        """The hub token, or None. An unreadable token file raises OSError."""
        if self.hub_token_file is not None:
            return self.hub_token_file.read_text().strip() or None
        return self.hub_token.get_secret_value() if self.hub_token is not None else None
