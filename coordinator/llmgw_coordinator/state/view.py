"""One moment of the mirror, for deciding and answering."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar

from llmgw_proto.records import (
    AliveRecord,
    AssignmentRecord,
    ClusterRecord,
    CoordinatorRecord,
    EndpointRecord,
    EngineSettings,
    FabricMapRecord,
    InventoryRecord,
    ModelSpec,
    NodeStatusRecord,
    Record,
    RouterRecord,
    ShardRecord,
)

R_co = TypeVar("R_co", bound=Record, covariant=True)

#: (node, shard) or (node, replica).
Place: TypeAlias = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Stored(Generic[R_co]):
    """A record and the revisions of its key, for compares."""

    record: R_co
    create_revision: int
    mod_revision: int


@dataclass(frozen=True, slots=True)
class View:
    """Not to be changed by whoever holds it; the mirror makes a new one after a change."""

    cluster: ClusterRecord | None = None
    models: Mapping[str, Stored[ModelSpec]] = field(default_factory=dict)
    inventories: Mapping[str, Stored[InventoryRecord]] = field(default_factory=dict)
    statuses: Mapping[str, Stored[NodeStatusRecord]] = field(default_factory=dict)
    alive: Mapping[str, Stored[AliveRecord]] = field(default_factory=dict)
    assignments: Mapping[Place, Stored[AssignmentRecord]] = field(default_factory=dict)
    shards: Mapping[Place, Stored[ShardRecord]] = field(default_factory=dict)
    endpoints: Mapping[Place, Stored[EndpointRecord]] = field(default_factory=dict)
    routers: Mapping[str, Stored[RouterRecord]] = field(default_factory=dict)
    coordinators: Mapping[str, Stored[CoordinatorRecord]] = field(default_factory=dict)
    candidates: Mapping[str, Stored[CoordinatorRecord]] = field(default_factory=dict)
    fabrics: Mapping[str, Stored[FabricMapRecord]] = field(default_factory=dict)
    """By subnet."""
    engines: Mapping[str, Stored[EngineSettings]] = field(default_factory=dict)
    """What the fleet is told to install, by engine."""
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """By key: why its value cannot be read. The last readable value, if there was one, is still in the tables."""
    unread_models: Mapping[str, str] = field(default_factory=dict)
    """By model: why its spec cannot be read."""
    unread_nodes: Mapping[str, str] = field(default_factory=dict)
    """By node: why something about it (inventory, alive, an assignment or shard there) cannot be read."""
    breathing: frozenset[str] = frozenset()
    """Nodes whose alive key is present, readable or not."""

    @property
    def leader(self) -> str | None:
        """The id of the coordinator that leads: the oldest candidate."""
        return min(self.candidates, key=lambda each: self.candidates[each].create_revision, default=None)

    @property
    def nodes(self) -> list[str]:
        """All nodes of which anything is known, sorted; a node that only a leftover assignment names counts."""
        return sorted({*self.inventories, *self.breathing, *self.unread_nodes, *(node for node, _ in self.assignments)})
