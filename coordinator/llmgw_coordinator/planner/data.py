"""What the planner is given and what it returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from llmgw_proto.records import AssignmentRecord, FabricMapRecord, InventoryRecord, ModelSpec, ShardRecord


@dataclass(frozen=True, slots=True)
class Settings:
    """Rules that an operator may set."""

    grace: float = 60.0
    """Seconds that a node may be away before its replicas are given to others."""
    reserved_bytes: int = 512 * 2**20
    """Memory of every node that no replica may claim: for the system and the agent."""
    brake_share: float = 0.3
    """When more than this share of the nodes vanishes within one grace window, nothing is moved. 1 turns the brake off."""
    brake_min: int = 2


@dataclass(frozen=True, slots=True)
class Node:
    """A node as the planner needs it."""

    name: str
    inventory: InventoryRecord | None
    gone_for: float | None = None
    """Seconds since the agent was last seen alive, by the planning coordinator's own clock; None while it is alive."""
    witnessed: bool = True
    """Whether the planning coordinator ever saw it alive. If not, nobody knows when it vanished."""
    closed: str | None = None
    """Why nothing new may be placed there although it is alive: one of its records cannot be read."""

    @property
    def alive(self) -> bool:
        return self.gone_for is None


@dataclass(frozen=True, slots=True)
class Assigned:
    """An assignment, where it is, and its age relative to others (etcd's create_revision; greater is newer)."""

    node: str
    record: AssignmentRecord
    created: int = 0


@dataclass(frozen=True, slots=True)
class World:
    """Everything that a pass decides from."""

    models: Mapping[str, ModelSpec]
    nodes: Mapping[str, Node]
    assignments: Sequence[Assigned]
    shards: Sequence[ShardRecord]
    unreadable_models: frozenset[str] = frozenset()
    """Models that are wished but whose spec cannot be read: left as they are."""
    settings: Settings = Settings()
    settling: frozenset[tuple[str, str]] = frozenset()
    """Shards (node, shard) that have reported a failure so lately that their agent may yet announce another attempt."""
    fabrics: Sequence[FabricMapRecord] = ()
    """Maps of InfiniBand subnets."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A shard's wish, and the node that it is for."""

    node: str
    record: AssignmentRecord


@dataclass(frozen=True, slots=True)
class Create:
    """A new replica: all its shards, by rank."""

    shards: tuple[Placed, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Move:
    """A replica goes from one place to another (or to other GPUs of the same nodes), all its shards with one higher epoch."""

    sources: tuple[Assigned, ...]
    shards: tuple[Placed, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Delete:
    """A replica is to drain and stop, all of it."""

    sources: tuple[Assigned, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Update:
    """What a running replica can take over without a restart has changed; same epoch, same places."""

    sources: tuple[Assigned, ...]
    shards: tuple[Placed, ...]
    why: str


Decision: TypeAlias = Create | Move | Delete | Update


@dataclass(slots=True)
class Plan:
    """The outcome of a pass."""

    decisions: list[Decision] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    """By model: why it has fewer replicas than wished, or replicas that cannot be helped, with the remedy."""
    failures: dict[str, Exception] = field(default_factory=dict)
    """By model: what went wrong when planning it. Nothing was decided for it."""
    problems: list[str] = field(default_factory=list)
    """What concerns the cluster as a whole."""
    outdated: dict[str, frozenset[str]] = field(default_factory=dict)
    """By model: replicas that still run an older spec."""
