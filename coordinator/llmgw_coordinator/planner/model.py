"""The plan for one model.

In this order: replicas that stand twice are reduced to one; too many are given up; replicas that cannot live where they are
move; missing ones are created; an older spec's replicas are replaced one by one, the new one first wherever it fits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from llmgw_coordinator.planner.data import Create, Decision, Delete, Move, Placed, Update
from llmgw_coordinator.planner.explain import missing, why_not
from llmgw_coordinator.planner.finder import Finder, Identity
from llmgw_coordinator.planner.place import Rooms, Spread
from llmgw_coordinator.planner.profiles import refreshed
from llmgw_coordinator.planner.replica import Condition, Replica
from llmgw_proto.records import ModelSpec

_REASONS_SHOWN = 3
_HOPELESS = (Condition.TORN, Condition.LOST, Condition.BROKEN, Condition.WAITING)


@dataclass(slots=True)
class ModelPlan:
    """What comes out for one model."""

    decisions: list[Decision] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    outdated: frozenset[str] = frozenset()

    @property
    def reason(self) -> str:
        more = len(self.notes) - _REASONS_SHOWN
        return "; ".join(self.notes[:_REASONS_SHOWN]) + (f"; and {more} more" if more > 0 else "")


class ModelPlanner:
    """Plans one model against the room that is left; used once."""

    def __init__(
        self,
        spec: ModelSpec,
        replicas: list[Replica],
        rooms: Rooms,
        *,
        estimate: int,
        braked: bool,
        draining: bool,
        new_id: Callable[[str], str],
    ) -> None:
        self._spec = spec
        self._rooms = rooms
        self._braked = braked
        self._draining = draining
        self._new_id = new_id
        self._plan = ModelPlan()
        self._spread = Spread()
        self._finder = Finder(spec, rooms, self._spread, estimate)
        self._profiles = {each.id: self._finder.profile_of(each) for each in replicas}
        self._current = [each for each in replicas if self._profiles[each.id] is not None]
        self._outdated = [each for each in replicas if self._profiles[each.id] is None]
        for each in replicas:
            self._spread.counts.update(each.nodes)
            if each.leftovers:
                self._plan.decisions.append(Delete(each.leftovers, "the replica has a newer place"))
        for each in self._current:
            self._spread.shunned.update(each.record.tried)
            if each.condition is Condition.BROKEN:
                self._spread.shunned.update(culprit.node for culprit in each.culprits)

    def run(self) -> ModelPlan:
        self._plan.outdated = frozenset(each.id for each in self._outdated)
        wanted = self._spec.replicas.min
        self._give_up_excess(wanted)
        self._move_stranded()
        self._create_missing(wanted)
        if self._outdated and not self._braked:
            self._replace_one(wanted)
        self._refresh()
        return self._plan

    # --- fewer ---------------------------------------------------------------------------------------------------------

    def _give_up_excess(self, wanted: int) -> None:
        self._give_up(self._current, len(self._current) - wanted, f"{wanted} wished")
        if self._braked:
            self._give_up(self._outdated, len(self._outdated) - wanted, f"{wanted} wished")
            return
        useless = sum(each.condition in _HOPELESS for each in self._outdated)
        ready = sum(each.condition is Condition.READY for each in self._current)
        surplus = len(self._outdated) - max(0, wanted - ready)
        self._give_up(self._outdated, max(useless, surplus), "it runs an older spec")

    def _give_up(self, among: list[Replica], count: int, why: str) -> None:
        for each in sorted(among, key=lambda each: each.first_to_go)[: max(0, count)]:
            self._plan.decisions.append(Delete(each.sources, why))
            self._spread.counts.subtract(each.nodes)
            among.remove(each)

    # --- elsewhere -----------------------------------------------------------------------------------------------------

    def _move_stranded(self) -> None:
        for each in [each for each in self._current if each.condition in _CAUSES]:
            cause = _cause(each)
            if self._braked:
                self._plan.notes.append(f"replica {each.id}: {cause}; nothing is moved while too many nodes are away")
            elif self._move(each, cause):
                continue
            elif each.condition is Condition.TORN:
                # Parts of a replica serve nobody and hold room; the wish for it stays, and is fulfilled when there is room.
                self._give_up([each], 1, cause)
                self._current.remove(each)
            else:
                elsewhere = missing(self._rooms, self._finder.needs[0], self._closed_to(each))
                self._plan.notes.append(f"replica {each.id}: {cause}; it cannot go elsewhere: {elsewhere}")

    def _move(self, replica: Replica, cause: str) -> bool:
        avoid = self._closed_to(replica)
        tried = list(replica.record.tried)
        if replica.condition is Condition.BROKEN:
            tried += [each.node for each in replica.culprits if each.node not in tried]
        who = Identity(replica.id, replica.epoch + 1, tried)
        alone = len(replica.members) == 1 and replica.condition is not Condition.TORN
        self._spread.counts.subtract(replica.nodes)
        shards = self._finder.other(who, avoid) if alone else self._finder.again(who, replica, avoid)
        if shards is None:
            self._spread.counts.update(replica.nodes)
            return False
        self._spread.counts.update(each.node for each in shards)
        self._plan.decisions.append(Move(replica.sources, shards, cause))
        self._current.remove(replica)
        return True

    def _closed_to(self, replica: Replica) -> set[str]:
        """Nodes that the replica must not move to: with a bad GPU it may stay on its node with others, and of a replica over
        several nodes those may go on that are not to blame. One that is put together again may be where it was.
        """
        if replica.condition is Condition.TORN:
            return set(replica.record.tried)
        if replica.condition is Condition.SICK:
            return set(self._spread.shunned)
        return self._spread.shunned | {each.node for each in replica.culprits}

    # --- more ----------------------------------------------------------------------------------------------------------

    def _create_missing(self, wanted: int) -> None:
        moved = sum(isinstance(each, Move) for each in self._plan.decisions)
        absent = wanted - len(self._current) - len(self._outdated) - moved
        for done in range(absent):
            if not self._create(f"{wanted} wished"):
                self._plan.notes.append(f"{absent - done} of {wanted} replicas not placed: {self._why_not()}")
                return

    def _create(self, why: str) -> bool:
        # The id is drawn when there is a place for it.
        shards = self._finder.new(lambda: Identity(self._new_id(self._spec.name), 1, []))
        if shards is None:
            return False
        self._plan.decisions.append(Create(shards, why))
        self._spread.counts.update(each.node for each in shards)
        return True

    def _why_not(self) -> str:
        return why_not(self._rooms, self._finder.needs, ())

    # --- an older spec's replicas --------------------------------------------------------------------------------------

    def _replace_one(self, wanted: int) -> None:
        """One replica above the wish at most, one below it at most, and below it only if that makes room.

        A place that a stopping replica is about to leave is waited for before another one is given up.
        """
        placed = sum(isinstance(each, Create | Move) for each in self._plan.decisions)
        total = len(self._current) + len(self._outdated) + placed
        if total != wanted or len(self._current) + placed >= wanted or self._create("the spec changed"):
            return
        serving = sum(each.condition >= Condition.DOUBTFUL for each in (*self._current, *self._outdated))
        if serving < wanted or self._draining or any(isinstance(each, Delete) for each in self._plan.decisions):
            return
        for old in sorted(self._outdated, key=lambda each: each.first_to_go):
            if self._finder.fits_in_place_of(old):
                self._plan.decisions.append(Delete(old.sources, "it runs an older spec and its room is needed for the new one"))
                self._outdated.remove(old)
                return
        self._plan.notes.append(f"replicas of the older spec go on, the new one fits nowhere: {self._why_not()}")

    def _refresh(self) -> None:
        for each in self._current:
            profile = self._profiles[each.id]
            assert profile is not None, "it is current"
            shards = [Placed(one.node, refreshed(self._spec, profile, one.record)) for one in each.members]
            if any(new.record is not one.record for new, one in zip(shards, each.members, strict=True)):
                self._plan.decisions.append(Update(each.sources, tuple(shards), "the spec changed in what needs no restart"))


_CAUSES = {
    Condition.TORN: "its shards do not belong together: {reason}",
    Condition.LOST: "node {node} is away",
    Condition.BROKEN: "given up on node {node}: {reason}",
    Condition.SICK: "a GPU of it on node {node} is quarantined",
}


def _cause(replica: Replica) -> str:
    """In words, with the first shard to blame."""
    first = replica.culprits[0] if replica.culprits else replica.members[0]
    reason = first.shard.reason if first.shard is not None else ""
    if replica.condition is Condition.TORN:
        there = ", ".join(f"{each.record.rank} on {each.node} in epoch {each.record.epoch}" for each in replica.members)
        wanted = max(len(each.record.peers) for each in replica.members)
        reason = f"of {wanted} ranks there are {there}"
    return _CAUSES[replica.condition].format(node=first.node, reason=reason)
