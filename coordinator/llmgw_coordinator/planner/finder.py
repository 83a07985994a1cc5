"""Places for one model's replicas, under its profiles in their order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from llmgw_coordinator.planner.data import Placed
from llmgw_coordinator.planner.gang import GangPicker, Seat
from llmgw_coordinator.planner.place import Picker, Rooms, Spread, best
from llmgw_coordinator.planner.profiles import assignment_for, need_of, profile_of
from llmgw_coordinator.planner.replica import Replica
from llmgw_coordinator.planner.room import Need, Room
from llmgw_coordinator.planner.versions import BY_NAME, pinned, stated
from llmgw_proto.records import AssignmentRecord, ModelSpec, Profile


@dataclass(frozen=True, slots=True)
class Identity:
    """What a wish says of its replica besides what it is to run."""

    replica: str
    epoch: int
    tried: list[str]


class Finder:
    """Finds places and claims them; ``spread`` is kept up to date by whoever uses this."""

    def __init__(self, spec: ModelSpec, rooms: Rooms, spread: Spread, estimate: int) -> None:
        self._spec = spec
        self._rooms = rooms
        self._spread = spread
        self._ways: list[tuple[Profile, Need]] = [(profile, need_of(profile, estimate)) for profile in spec.profiles]
        self._pickers: list[Picker | GangPicker] | None = None

    @property
    def needs(self) -> list[Need]:
        return [need for _, need in self._ways]

    def profile_of(self, replica: Replica) -> Profile | None:
        """The profile that the replica runs under; None: it runs an older spec."""
        return profile_of(self._spec, replica.record, lambda profile, record: self._version_holds(profile, record, replica))

    def new(self, identify: Callable[[], Identity]) -> tuple[Placed, ...] | None:
        """The best place for one more replica; looks at all nodes once, however often it is called."""
        if self._pickers is None:
            self._pickers = [self._picker(need) for need in self.needs]
        for (profile, need), picker in zip(self._ways, self._pickers, strict=True):
            found = picker.pick()
            if isinstance(found, Room):
                return self._take(profile, need, found, identify())
            if found is not None:
                return self._take_all(profile, need, found, identify())
        return None

    def other(self, who: Identity, avoid: Collection[str]) -> tuple[Placed, ...] | None:
        """The best place for a replica that was on one node."""
        for profile, need in self._ways:
            if need.nodes > 1:
                seats = GangPicker(self._rooms, need, self._spread, avoid=avoid).pick()
                if seats is not None:
                    return self._take_all(profile, need, seats, who)
                continue
            room = best(self._rooms, need, self._spread, avoid)
            if room is not None:
                return self._take(profile, need, room, who)
        return None

    def again(self, who: Identity, replica: Replica, avoid: Collection[str]) -> tuple[Placed, ...] | None:
        """The best place for a replica that spans nodes, in the room that it leaves too. Nodes that stay keep their ranks."""
        self._rooms.release(replica.id)
        try:
            found = self._again(who, replica, avoid)
        except BaseException:
            self._rooms.hold(replica.id)
            raise
        if found is None:
            self._rooms.hold(replica.id)
        else:
            self._rooms.hold_rest(replica.id, {each.node: each.record.gpus for each in found})
        return found

    def _again(self, who: Identity, replica: Replica, avoid: Collection[str]) -> tuple[Placed, ...] | None:
        ranks = {node: each.record.rank for node, each in zip(replica.nodes, replica.members, strict=True)}
        for profile, need in self._ways:
            if need.nodes > 1:
                seats = GangPicker(self._rooms, need, self._spread, avoid=avoid, home=ranks).pick()
                found = self._take_all(profile, need, by_rank(seats, ranks), who) if seats is not None else None
            else:
                room = best(self._rooms, need, self._spread, avoid)
                found = self._take(profile, need, room, who) if room is not None else None
            if found is not None:
                return found
        return None

    def fits_in_place_of(self, replica: Replica) -> bool:
        """Whether one more replica would fit if this one ended."""
        self._rooms.release(replica.id)
        try:
            return any(self._fits(need, replica.nodes) for need in self.needs)
        finally:
            self._rooms.hold(replica.id)

    def _fits(self, need: Need, nodes: Sequence[str]) -> bool:
        if need.nodes > 1:
            return GangPicker(self._rooms, need, Spread()).pick() is not None
        left = [room for room in map(self._rooms.get, nodes) if room is not None]
        return any(room.offers(need) and room.has_room(need) for room in left)

    def _picker(self, need: Need) -> Picker | GangPicker:
        return GangPicker(self._rooms, need, self._spread) if need.nodes > 1 else Picker(self._rooms, need, self._spread)

    def _take(self, profile: Profile, need: Need, room: Room, who: Identity) -> tuple[Placed, ...]:
        gpus = room.take(need)
        version = stated(need, room, room.class_of(gpus)) if need.versions else need.version
        record = assignment_for(
            self._spec, profile, replica=who.replica, epoch=who.epoch, gpus=gpus, tried=who.tried, version=version
        )
        return (Placed(room.name, record),)

    def _take_all(self, profile: Profile, need: Need, seats: Sequence[Seat], who: Identity) -> tuple[Placed, ...]:
        peers = [seat.room.name for seat in seats]
        return tuple(
            Placed(
                seat.room.name,
                assignment_for(
                    self._spec,
                    profile,
                    replica=who.replica,
                    epoch=who.epoch,
                    gpus=seat.room.take(seat.need(need)),
                    tried=who.tried,
                    version=seat.wish,
                    rank=rank,
                    peers=peers,
                ),
            )
            for rank, seat in enumerate(seats)
        )

    def _version_holds(self, profile: Profile, record: AssignmentRecord, replica: Replica) -> bool:
        """Whether it would get the same version if it were placed where it is. What is not known is no reason to replace it."""
        if not profile.versions and (profile.nodes == 1 or profile.version is not None):
            return profile.version == record.version
        need = need_of(profile, 0)
        rooms = [self._rooms.get(each.node) for each in replica.members]
        both = zip(rooms, replica.members, strict=True)
        places = [(room, room.class_of(each.record.gpus)) for room, each in both if room is not None]
        if len(places) < len(rooms) or not all(room.known for room, _ in places):
            return True
        if profile.nodes == 1:
            return stated(need, *places[0]) == record.version
        wished = {pinned(need, *place) for place in places}
        if None in wished and need.engine in BY_NAME:
            return True  # an agent that cannot tell its own version now
        return len(wished) > 1 or record.version in wished


def by_rank(seats: Sequence[Seat], ranks: dict[str, int]) -> list[Seat]:
    """The seats with those that were there before at their old ranks, as far as there are such."""
    order: dict[int, Seat] = {}
    for seat in seats:
        rank = ranks.get(seat.room.name)
        if rank is not None and rank < len(seats) and rank not in order:
            order[rank] = seat
    placed = {seat.room.name for seat in order.values()}
    rest = iter([seat for seat in seats if seat.room.name not in placed])
    return [order[rank] if rank in order else next(rest) for rank in range(len(seats))]
