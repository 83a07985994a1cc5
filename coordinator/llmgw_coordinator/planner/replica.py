"""One replica as the planner sees it: the wish for it, the truth about it, and what condition that adds up to."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from llmgw_coordinator.planner.data import Assigned, Node, Settings
from llmgw_proto.records import ShardRecord, ShardState


class Condition(IntEnum):
    """In the order in which replicas are given up when there are too many."""

    LOST = 0
    """Its node has been away for longer than the grace."""
    BROKEN = 1
    """Its agent has given up on it: rejected, or failed with no further attempt ahead."""
    WAITING = 2
    """On its way, or between two attempts."""
    DOUBTFUL = 3
    """May well be serving: its node is away but not for long yet, or its engine is suspect."""
    SICK = 4
    """A GPU of it is quarantined."""
    READY = 5


@dataclass(frozen=True, slots=True)
class Replica:
    assigned: Assigned
    shard: ShardRecord | None
    condition: Condition

    @property
    def id(self) -> str:
        return self.assigned.record.replica

    @property
    def node(self) -> str:
        return self.assigned.node

    @property
    def memory(self) -> int:
        """Bytes that its end would give back."""
        shard = self.shard.memory_bytes if self.shard is not None else 0
        return max(self.assigned.record.memory_bytes, shard)

    @property
    def first_to_go(self) -> tuple[int, int, str]:
        """Sorts what serves least first, then the newest."""
        return self.condition, -self.assigned.created, self.id


def examine(
    assigned: Assigned, shard: ShardRecord | None, node: Node | None, settings: Settings, *, settling: bool = False
) -> Replica:
    """A shard record of an earlier epoch says nothing about the present one; nor does a failure that is still settling."""
    if shard is not None and shard.epoch != assigned.record.epoch:
        shard = None
    condition = _condition(assigned, shard, node, settings)
    return Replica(assigned, shard, Condition.WAITING if settling and condition is Condition.BROKEN else condition)


def _condition(assigned: Assigned, shard: ShardRecord | None, node: Node | None, settings: Settings) -> Condition:
    if node is None:
        return Condition.DOUBTFUL
    if node.gone_for is not None:
        return Condition.LOST if node.gone_for >= settings.grace else Condition.DOUBTFUL
    if shard is not None and broken(shard):
        return Condition.BROKEN
    if node.inventory is not None and assigned.record.gpus:
        wished = assigned.record.gpus
        if any(gpu.quarantine is not None and gpu.uuid in wished for gpu in node.inventory.gpus):
            return Condition.SICK
    return _SERVING.get(shard.state, Condition.WAITING) if shard is not None else Condition.WAITING


_SERVING = {ShardState.READY: Condition.READY, ShardState.SUSPECT: Condition.DOUBTFUL}


def broken(shard: ShardRecord) -> bool:
    """Whether the agent will not try again by itself."""
    return shard.state is ShardState.REJECTED or (shard.state is ShardState.FAILED and shard.next_attempt_at is None)
