"""The coordinator's configuration file."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

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


class AdminSection(Section):
    """The admin API."""

    listen: str = Field(default="127.0.0.1:7080", description="host:port; a bare port listens on loopback")
    advertise: Annotated[str, AfterValidator(_url)] | None = Field(
        default=None, description="URL under which others reach this API; by default made from listen and the host's name"
    )
    token_file: Path | None = Field(default=None, description="by default admin.token in state_dir; made at the first start")
    failures_per_minute: int = Field(
        default=10, ge=1, description="wrong tokens that one address may try before it is turned away"
    )


class PlacementSection(Section):
    """Rules of the planner."""

    node_grace: float = Field(default=60, gt=0, description="seconds that a node may be away before its replicas move")
    reserved_memory: Size = Field(default="512MiB", description="of every node, for the system and the agent")
    brake_share: float = Field(
        default=0.3,
        gt=0,
        le=1,
        description="nothing moves when more than this share of the nodes vanishes at once; 1: never mind",
    )

    def settings(self) -> Settings:
        return Settings(grace=self.node_grace, reserved_bytes=parse_bytes(self.reserved_memory), brake_share=self.brake_share)


class CoordinatorConfig(Section):
    """The whole file."""

    id: str = Field(default_factory=socket.gethostname, min_length=1, max_length=200, description="unique among coordinators")
    cluster_name: str = Field(default="llmgw", min_length=1, description="used when the first leader makes the cluster")
    state_dir: Path = Field(default_factory=default_state_dir)
    etcd: EtcdSection = EtcdSection()
    admin: AdminSection = AdminSection()
    placement: PlacementSection = PlacementSection()
    leader_ttl: float = Field(default=15, ge=2, le=300, description="seconds after which a leader that is gone is replaced")
    tls: TlsSection | None = Field(default=None, description="for serving the admin API and for calling agents")
    insecure: bool = Field(default=False, description="allow plaintext to and from other machines")
    log: LogSection = LogSection()

    @model_validator(mode="after")
    def _grace_outlives_a_change_of_leader(self) -> Self:
        # A new leader must have had the time to see the nodes before it may judge them.
        if self.placement.node_grace < self.leader_ttl:
            raise ValueError(
                f"placement.node_grace ({self.placement.node_grace:g}) is below leader_ttl ({self.leader_ttl:g}); raise it"
            )
        return self

    @property
    def token_file(self) -> Path:
        return self.admin.token_file or self.state_dir / "admin.token"
