"""The coordinator's configuration file."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from llmgw_base.config import EtcdSection, LogSection, Section, TlsSection
from llmgw_coordinator.planner import Settings
from llmgw_proto.records.model import Size, parse_bytes


def default_state_dir() -> Path:
    """systemd's state folder, else the system's for root and the user's own for others."""
    given = os.environ.get("STATE_DIRECTORY")
    if given:
        return Path(given.split(":")[0])
    if os.geteuid() == 0:
        return Path("/var/lib/llmgw/coordinator")
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "llmgw" / "coordinator"


def _url(value: str) -> str:
    if not value.startswith(("http://", "https://")):
        raise ValueError(f"{value!r} is not a URL; write for example https://host:7080")
    return value.rstrip("/")


class PlacementSection(Section):
    """Rules of the planner."""

    reserved_memory: Size = Field(default="512MiB", description="of every node, for the system and the agent")
    brake_share: float = Field(
        default=0.3,
        gt=0,
        le=1,
        description="nothing moves when more than this share of the nodes vanishes at once; 1: never mind",
    )


class CoordinatorConfig(Section):
    """The whole file."""

    id: str = Field(default_factory=socket.gethostname, min_length=1, max_length=200, description="unique among coordinators")
    listen: str = Field(default="127.0.0.1:7080", description="of the admin API: host:port; a bare port listens on loopback")
    advertise: Annotated[str, AfterValidator(_url)] | None = Field(
        default=None, description="URL under which others reach the admin API; by default made from listen and the host's name"
    )
    state_dir: Path = Field(default_factory=default_state_dir)
    token_file: Path | None = Field(
        default=None, description="the admin API's token; by default admin.token in state_dir; made at the first start"
    )
    token_failures_per_minute: int = Field(
        default=10, ge=1, description="wrong tokens that one address may try before it is turned away"
    )
    cluster_name: str = Field(default="llmgw", min_length=1, description="used when the first leader makes the cluster")
    etcd: EtcdSection = EtcdSection()
    leader_ttl: float = Field(default=15, ge=1, le=300, description="seconds after which a leader that is gone is replaced")
    node_grace: float = Field(default=60, gt=0, description="seconds that a node may be away before its replicas move")
    placement: PlacementSection = PlacementSection()
    tls: TlsSection | None = Field(default=None, description="for serving the admin API and for calling agents")
    insecure: bool = Field(default=False, description="allow plaintext to and from other machines")
    log: LogSection = LogSection()

    @property
    def settings(self) -> Settings:
        """For the planner."""
        return Settings(
            grace=self.node_grace,
            reserved_bytes=parse_bytes(self.placement.reserved_memory),
            brake_share=self.placement.brake_share,
        )

    @property
    def token_path(self) -> Path:
        return self.token_file or self.state_dir / "admin.token"
