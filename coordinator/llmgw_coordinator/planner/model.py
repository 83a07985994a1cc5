"""The plan for one model.

In this order: replicas that stand twice are reduced to one; too many are given up; replicas that cannot live where they are
move; missing ones are created; an older spec's replicas are replaced one by one, the new one first wherever it fits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from llmgw_coordinator.planner.data import Create, Decision, Delete, Move, Update
from llmgw_coordinator.planner.explain import missing, why_not
from llmgw_coordinator.planner.place import Picker, Rooms, Spread, best
from llmgw_coordinator.planner.profiles import assignment_for, need_of, profile_of, refreshed
from llmgw_coordinator.planner.replica import Condition, Replica
from llmgw_coordinator.planner.room import Need, Room
from llmgw_proto.records import ModelSpec, Profile

_REASONS_SHOWN = 3
_HOPELESS = (Condition.LOST, Condition.BROKEN, Condition.WAITING)


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
        self._needs: list[tuple[Profile, Need]] = [(profile, need_of(profile, estimate)) for profile in spec.profiles]
        self._pickers: list[Picker] | None = None
        kept = self._without_doubles(replicas)
        self._profiles = {each.id: profile_of(spec, each.assigned.record) for each in kept}
        self._current = [each for each in kept if self._profiles[each.id] is not None]
        self._outdated = [each for each in kept if self._profiles[each.id] is None]
        self._spread = Spread()
        self._spread.counts.update(each.node for each in kept)
        for each in self._current:
            self._spread.shunned.update(each.assigned.record.tried)
            if each.condition is Condition.BROKEN:
                self._spread.shunned.add(each.node)

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

    def _without_doubles(self, replicas: list[Replica]) -> list[Replica]:
        """A replica is one thing at one place: of two wishes for it the one with the higher epoch counts."""
        newest: dict[str, Replica] = {}
        for each in sorted(replicas, key=lambda each: (each.assigned.record.epoch, each.assigned.created)):
            if each.id in newest:
                self._plan.decisions.append(Delete(newest[each.id].assigned, "the replica has a newer place"))
            newest[each.id] = each
        return list(newest.values())

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
            self._plan.decisions.append(Delete(each.assigned, why))
            self._spread.counts[each.node] -= 1
            among.remove(each)

    # --- elsewhere -----------------------------------------------------------------------------------------------------

    def _move_stranded(self) -> None:
        for each in [each for each in self._current if each.condition in _CAUSES]:
            cause = _CAUSES[each.condition].format(node=each.node, reason=each.shard.reason if each.shard else "")
            if self._braked:
                self._plan.notes.append(f"replica {each.id}: {cause}; nothing is moved while too many nodes are away")
            elif not self._move(each, cause):
                elsewhere = missing(self._rooms, self._needs[0][1], self._closed_to(each))
                self._plan.notes.append(f"replica {each.id}: {cause}; it cannot go elsewhere: {elsewhere}")

    def _move(self, replica: Replica, cause: str) -> bool:
        avoid = self._closed_to(replica)
        record = replica.assigned.record
        tried = [*record.tried, replica.node] if replica.condition is Condition.BROKEN else list(record.tried)
        for profile, need in self._needs:
            room = best(self._rooms, need, self._spread, avoid)
            if room is not None:
                moved = assignment_for(
                    self._spec, profile, replica=replica.id, epoch=record.epoch + 1, gpus=room.take(need), tried=tried
                )
                self._plan.decisions.append(Move(replica.assigned, room.name, moved, cause))
                self._spread.counts[replica.node] -= 1
                self._spread.counts[room.name] += 1
                self._current.remove(replica)
                return True
        return False

    def _closed_to(self, replica: Replica) -> set[str]:
        """Nodes that the replica must not move to; with a bad GPU it may stay on its node with others."""
        own = set() if replica.condition is Condition.SICK else {replica.node}
        return self._spread.shunned | own

    # --- more ----------------------------------------------------------------------------------------------------------

    def _create_missing(self, wanted: int) -> None:
        moved = sum(isinstance(each, Move) for each in self._plan.decisions)
        absent = wanted - len(self._current) - len(self._outdated) - moved
        for done in range(absent):
            if not self._create(f"{wanted} wished"):
                self._plan.notes.append(f"{absent - done} of {wanted} replicas not placed: {self._why_not()}")
                return

    def _create(self, why: str) -> bool:
        place = self._pick()
        if place is None:
            return False
        profile, need, room = place
        record = assignment_for(
            self._spec, profile, replica=self._new_id(self._spec.name), epoch=1, gpus=room.take(need), tried=[]
        )
        self._plan.decisions.append(Create(room.name, record, why))
        self._spread.counts[room.name] += 1
        return True

    def _pick(self) -> tuple[Profile, Need, Room] | None:
        if self._pickers is None:
            self._pickers = [Picker(self._rooms, need, self._spread) for _, need in self._needs]
        for (profile, need), picker in zip(self._needs, self._pickers, strict=True):
            room = picker.pick()
            if room is not None:
                return profile, need, room
        return None

    def _why_not(self) -> str:
        return why_not(self._rooms, [need for _, need in self._needs], ())

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
            if self._makes_room(old):
                self._plan.decisions.append(
                    Delete(old.assigned, "it runs an older spec and its room is needed for the new one")
                )
                self._outdated.remove(old)
                return
        self._plan.notes.append(f"replicas of the older spec go on, the new one fits nowhere: {self._why_not()}")

    def _makes_room(self, old: Replica) -> bool:
        room = self._rooms[old.node]
        gpus = old.assigned.record.gpus
        return any(room.offers(need) and room.has_room_after(need, gpus, old.memory) for _, need in self._needs)

    def _refresh(self) -> None:
        for each in self._current:
            profile = self._profiles[each.id]
            assert profile is not None, "it is current"
            record = refreshed(self._spec, profile, each.assigned.record)
            if record is not each.assigned.record:
                self._plan.decisions.append(Update(each.assigned, record, "the spec changed in what needs no restart"))


_CAUSES = {
    Condition.LOST: "node {node} is away",
    Condition.BROKEN: "given up on node {node}: {reason}",
    Condition.SICK: "a GPU of it on node {node} is quarantined",
}
