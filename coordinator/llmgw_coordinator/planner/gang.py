"""The choice of the nodes for a replica that spans several: all of them at once, or none.

All run the same version of the engine on GPUs of the same class. Nodes that are close to each other come first:

1. attached alike: the same link layer, as many rails, the same subnets, the same leaf switches where a map shows them
2. the same but for the switches
3. with an RDMA path between them
4. any, but not for an engine whose GPUs would wait for such a path for ever
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from llmgw_coordinator.planner.gpus import same_class
from llmgw_coordinator.planner.place import Rank, Rooms, Spread
from llmgw_coordinator.planner.room import Need, Room
from llmgw_coordinator.planner.versions import BY_NAME, pinned, shared

_GangRank: TypeAlias = tuple[bool, bool, Rank]


@dataclass(frozen=True, slots=True)
class Seat:
    """A node for one shard, with the class of GPU and the version that it would get there; room aside."""

    room: Room
    gpu_class: str
    version: str
    """What would run there."""
    wish: str | None
    """The same as far as the shard's wish says it."""
    closeness: tuple[Hashable, ...]
    """Seats with the same first value are closest, and so on; see above."""

    def need(self, need: Need) -> Need:
        """With the class of GPU that it would be."""
        return replace(need, gpu_class=self.gpu_class) if need.gpus else need


def seats(rooms: Rooms, need: Need, avoid: Collection[str] = ()) -> list[Seat]:
    """All that have room now; a node with several classes of GPUs has one for each."""
    needs: dict[str, Need] = {}
    found = []
    for seat in _all_seats(rooms, need):
        if seat.gpu_class not in needs:
            needs[seat.gpu_class] = seat.need(need)
        if seat.room.name not in avoid and seat.room.has_room(needs[seat.gpu_class]):
            found.append(seat)
    return found


def _all_seats(rooms: Rooms, need: Need) -> Sequence[Seat]:
    """Of a kind of need, found once for all models that have it."""
    overrides = tuple((each.version, each.gpu_class, *sorted(each.node_selector.items())) for each in need.versions)
    kind = (need.engine, need.selector, need.gpu_class, need.gpus > 0, need.version, overrides)
    known: dict[Hashable, list[Seat]] = rooms.notes
    if kind not in known:
        known[kind] = [seat for room in rooms.of_kind(need) for seat in _seats_of(rooms, room, need)]
    return known[kind]


def _seats_of(rooms: Rooms, room: Room, need: Need) -> Iterator[Seat]:
    for name in _classes(room, need):
        gpu_class = name or None
        version = shared(need, room, gpu_class)
        yield Seat(room, name, version, pinned(need, room, gpu_class), _closeness(rooms, room, need, (name, version)))


def _classes(room: Room, need: Need) -> Iterable[str]:
    if need.gpus == 0:
        return [""]
    return [kind.name for kind in room.kinds if need.gpu_class is None or same_class(need.gpu_class, kind.name)]


def _closeness(rooms: Rooms, room: Room, need: Need, alike: tuple[str, str]) -> tuple[Hashable, ...]:
    attached = rooms.attachment(room.name)
    keys: list[Hashable] = [
        (alike, attached),
        (alike, attached.layer, attached.rails, attached.subnets),
        (alike, attached.reach),
    ]
    if not needs_rdma_path(need):
        keys.append(alike)
    # Numbers in their place: they are compared for each model again.
    return tuple(rooms.number(key) for key in keys)


def needs_rdma_path(need: Need) -> bool:
    """Whether the engine would use RDMA wherever a node has it, and so hang when another has not."""
    return need.gpus > 0 and need.engine in BY_NAME


_Entry: TypeAlias = tuple[_GangRank, int, Seat]


@dataclass(slots=True)
class _Group:
    """Nodes that are alike, best first. Ranks only get worse while replicas are placed, so they are renewed as they come up."""

    heap: list[_Entry] = field(default_factory=list)

    def best(self, count: int, ranked: RankOf) -> list[_Entry]:
        """The best with room; fewer if there are not so many."""
        found: list[_Entry] = []
        while self.heap and len(found) < count:
            rank, number, seat = heapq.heappop(self.heap)
            if not seat.room.has_room(ranked.need(seat)):
                continue
            now = ranked(seat)
            if now == rank:
                found.append((rank, number, seat))
            else:
                heapq.heappush(self.heap, (now, number, seat))
        for each in found:
            heapq.heappush(self.heap, each)
        return found


class RankOf:
    """Lower is better: not where the model failed, then where the replica is already, then as for a replica on one node."""

    def __init__(self, need: Need, spread: Spread, home: Collection[str]) -> None:
        self._need, self._spread, self._home = need, spread, home
        self._needs: dict[str, Need] = {}

    def need(self, seat: Seat) -> Need:
        if seat.gpu_class not in self._needs:
            self._needs[seat.gpu_class] = seat.need(self._need)
        return self._needs[seat.gpu_class]

    def __call__(self, seat: Seat) -> _GangRank:
        name = seat.room.name
        return name in self._spread.shunned, name not in self._home, self._spread.rank(seat.room, self.need(seat))


class GangPicker:
    """Picks nodes for many replicas of one model, one after the other, looking at every node once."""

    def __init__(
        self, rooms: Rooms, need: Need, spread: Spread, *, avoid: Collection[str] = (), home: Collection[str] = ()
    ) -> None:
        """
        Args:
            avoid: nodes that are out of the question.
            home: nodes that have the weights already.
        """
        self._count = need.nodes
        self._ranked = RankOf(need, spread, home)
        self._seats = seats(rooms, need, avoid)
        self._steps = len(self._seats[0].closeness) if len(self._seats) >= need.nodes else 0
        self._groups: dict[int, dict[Hashable, _Group]] = {}

    def pick(self) -> list[Seat] | None:
        """The best nodes now, as many as the need says; a node where the model failed only when there is no other way."""
        for desperate in (False, True):
            for step in range(self._steps):
                groups = self._groups_at(step)
                best: list[_Entry] | None = None
                for key, group in list(groups.items()):
                    found = group.best(self._count, self._ranked)
                    if len(found) < self._count:
                        del groups[key]  # room only gets less
                    elif (desperate or not found[-1][0][0]) and (best is None or _order(found) < _order(best)):
                        best = found
                if best is not None:
                    return [seat for _, _, seat in best]
        return None

    def _groups_at(self, step: int) -> dict[Hashable, _Group]:
        if step not in self._groups:
            groups: dict[Hashable, _Group] = {}
            for number, seat in enumerate(self._seats):
                if seat.closeness[step] not in groups:
                    groups[seat.closeness[step]] = _Group()
                groups[seat.closeness[step]].heap.append((self._ranked(seat), number, seat))
            for group in groups.values():
                heapq.heapify(group.heap)
            self._groups[step] = groups
        return self._groups[step]


def _order(found: list[_Entry]) -> list[_GangRank]:
    """The worst node decides first."""
    return [rank for rank, _, _ in reversed(found)]
