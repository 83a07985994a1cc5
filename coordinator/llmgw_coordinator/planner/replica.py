"""One replica as the planner sees it: the wishes for it, the truth about it, and what condition that adds up to."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from enum import IntEnum

from llmgw_coordinator.planner.data import Assigned, Node, Settings
from llmgw_proto.records import AssignmentRecord, ShardRecord, ShardState


class Condition(IntEnum):
    """In the order in which replicas are given up when there are too many."""

    TORN = 0
    """It spans nodes, and its wishes do not belong together: some are missing, or they differ."""
    LOST = 1
    """A node of it has been away for longer than the grace."""
    BROKEN = 2
    """An agent has given up on it: rejected, or failed with no further attempt ahead."""
    WAITING = 3
    """On its way, or between two attempts."""
    DOUBTFUL = 4
    """May well be serving: a node of it is away but not for long yet, or its engine is suspect."""
    SICK = 5
    """A GPU of it is quarantined."""
    READY = 6


@dataclass(frozen=True, slots=True)
class Member:
    """One shard."""

    assigned: Assigned
    shard: ShardRecord | None
    condition: Condition

    @property
    def node(self) -> str:
        return self.assigned.node

    @property
    def record(self) -> AssignmentRecord:
        return self.assigned.record


@dataclass(frozen=True, slots=True)
class Replica:
    """``members`` by rank; of a torn one, all there are. ``leftovers`` are wishes for it that a newer one has replaced."""

    members: tuple[Member, ...]
    condition: Condition
    leftovers: tuple[Assigned, ...] = ()

    @property
    def id(self) -> str:
        return self.record.replica

    @property
    def record(self) -> AssignmentRecord:
        """The head's wish."""
        return self.members[0].assigned.record

    @property
    def epoch(self) -> int:
        return max(each.record.epoch for each in self.members)

    @property
    def nodes(self) -> list[str]:
        return [each.assigned.node for each in self.members]

    @property
    def sources(self) -> tuple[Assigned, ...]:
        return tuple(each.assigned for each in self.members)

    @property
    def age(self) -> tuple[int, int, str]:
        """Sorts the oldest first."""
        return self.epoch, max(each.assigned.created for each in self.members), self.id

    @property
    def first_to_go(self) -> tuple[int, int, str]:
        """Sorts what serves least first, then the newest."""
        return self.condition, -max(each.assigned.created for each in self.members), self.id

    @property
    def culprits(self) -> list[Member]:
        """Whose condition the replica's is. A head that fails because a worker was given up is not to blame."""
        found = [each for each in self.members if each.condition is self.condition]
        if self.condition is Condition.BROKEN:
            return [each for each in found if each.record.rank] or found
        return found


def replica_of(wishes: Sequence[Assigned], member: Callable[[Assigned], Member], closed: Container[str] = ()) -> Replica:
    """Puts together all wishes for one replica, of which there is at least one. Of several complete ones the newest counts.

    What seems to be missing may be there and unreadable on a node that is ``closed``; then the replica is left as it is.
    """
    if len(wishes) == 1 and not wishes[0].record.peers and not wishes[0].record.rank:
        only = member(wishes[0])
        return Replica((only,), only.condition)
    ordered = sorted(wishes, key=lambda each: (each.record.epoch, each.created))
    whole = _gang(ordered)
    if whole is None:
        parts = sorted(ordered, key=lambda each: (-each.record.epoch, each.record.rank, each.node))
        unread = any(name in closed for each in parts for name in (each.node, *each.record.peers))
        return Replica(tuple(member(each) for each in parts), Condition.DOUBTFUL if unread else Condition.TORN)
    members = tuple(member(each) for each in whole)
    return Replica(members, _together(members), tuple(each for each in ordered if each not in whole))


def _gang(ordered: Sequence[Assigned]) -> list[Assigned] | None:
    """The shards of the newest epoch by rank, if all are there and are parts of the same wish."""
    newest = ordered[-1]
    peers = newest.record.peers or [newest.node]
    shards = {each.record.rank: each for each in ordered if each.record.epoch == newest.record.epoch}
    if not newest.record.peers:
        shards = {newest.record.rank: newest}
    if sorted(shards) != list(range(len(peers))) or len(set(peers)) != len(peers):
        return None
    found = [shards[rank] for rank in range(len(peers))]
    fits = all(each.node == peers[rank] and _common(each.record) == _common(newest.record) for rank, each in enumerate(found))
    return found if fits else None


def _common(record: AssignmentRecord) -> tuple[object, ...]:
    """What all shards of a replica have in common."""
    return (
        record.peers,
        record.model,
        record.engine,
        record.version,
        record.source,
        record.args,
        record.env,
        record.memory_bytes,
        len(record.gpus),
    )


def _together(members: Sequence[Member]) -> Condition:
    """A replica is as good as its worst shard; what calls for a move comes before what merely waits."""
    conditions = {each.condition for each in members}
    if Condition.SICK in conditions and not conditions & {Condition.LOST, Condition.BROKEN}:
        return Condition.SICK
    return min(conditions)


def examine(
    assigned: Assigned, shard: ShardRecord | None, node: Node | None, settings: Settings, *, settling: bool = False
) -> Member:
    """A shard record of an earlier epoch says nothing about the present one; nor does a failure that is still settling."""
    if shard is not None and shard.epoch != assigned.record.epoch:
        shard = None
    condition = _condition(assigned, shard, node, settings)
    return Member(assigned, shard, Condition.WAITING if settling and condition is Condition.BROKEN else condition)


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
