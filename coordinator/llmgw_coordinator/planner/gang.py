"""The choice of the nodes for a replica that spans several: all of them at once, or none.

All run the same version of the engine on GPUs of the same class. Nodes that are close to each other come first:

1. attached alike: the same link layer, as many rails, the same subnets, the same leaf switches where a map shows them
2. the same but for the switches
3. with an RDMA path between them
4. any, but not for an engine whose GPUs would wait for such a path for ever
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from llmgw_coordinator.planner.fabric import Attachment
from llmgw_coordinator.planner.gpus import same_class
from llmgw_coordinator.planner.place import Rank, Rooms, Spread
from llmgw_coordinator.planner.room import Need, Room
from llmgw_coordinator.planner.versions import BY_NAME, pinned, shared

_GangRank: TypeAlias = tuple[bool, bool, Rank]


@dataclass(frozen=True, slots=True)
class Seat:
    """A node for one shard, with the class of GPU and the version that it would get there."""

    room: Room
    need: Need
    gpu_class: str
    version: str
    """What would run there."""
    wish: str | None
    """The same as far as the shard's wish says it."""


def seats(rooms: Rooms, need: Need, avoid: Collection[str] = ()) -> list[Seat]:
    """All that have room now; a node with several classes of GPUs has one for each."""
    return [
        seat
        for room in rooms.of_kind(need)
        if room.name not in avoid
        for seat in possible(room, need)
        if seat.room.has_room(seat.need)
    ]


def possible(room: Room, need: Need) -> Iterable[Seat]:
    """Room aside."""
    if need.gpus == 0:
        yield Seat(room, need, "", shared(need, room, None), pinned(need, room, None))
        return
    for kind in room.kinds:
        if need.gpu_class is None or same_class(need.gpu_class, kind.name):
            one = replace(need, gpu_class=kind.name)
            yield Seat(room, one, kind.name, shared(need, room, kind.name), pinned(need, room, kind.name))


def closeness(seat: Seat, attached: Attachment) -> list[Hashable]:
    """Nodes with the same first value are closest, and so on; see above."""
    alike = (seat.gpu_class, seat.version)
    keys: list[Hashable] = [
        (alike, attached),
        (alike, attached.layer, attached.rails, attached.subnets),
        (alike, attached.reach),
    ]
    return keys if needs_rdma_path(seat.need) else [*keys, alike]


def needs_rdma_path(need: Need) -> bool:
    """Whether the engine would use RDMA wherever a node has it, and so hang when another has not."""
    return need.gpus > 0 and need.engine in BY_NAME


@dataclass(slots=True)
class _Group:
    """Nodes that are alike, best first. Ranks only get worse while replicas are placed, so they are renewed as they come up."""

    heap: list[tuple[_GangRank, int, Seat]] = field(default_factory=list)

    def best(self, count: int, ranked: RankOf) -> list[tuple[_GangRank, int, Seat]]:
        """The best with room; fewer if there are not so many."""
        found: list[tuple[_GangRank, int, Seat]] = []
        while self.heap and len(found) < count:
            rank, number, seat = heapq.heappop(self.heap)
            if not seat.room.has_room(seat.need):
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

    def __init__(self, spread: Spread, home: Collection[str]) -> None:
        self._spread, self._home = spread, home

    def __call__(self, seat: Seat) -> _GangRank:
        name = seat.room.name
        return name in self._spread.shunned, name not in self._home, self._spread.rank(seat.room, seat.need)


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
        self._ranked = RankOf(spread, home)
        self._tiers: list[dict[Hashable, _Group]] = []
        for number, seat in enumerate(seats(rooms, need, avoid)):
            entry = (self._ranked(seat), number, seat)
            for tier, key in enumerate(closeness(seat, rooms.attachment(seat.room.name))):
                if tier == len(self._tiers):
                    self._tiers.append({})
                self._tiers[tier].setdefault(key, _Group()).heap.append(entry)
        for groups in self._tiers:
            for group in groups.values():
                heapq.heapify(group.heap)

    def pick(self) -> list[Seat] | None:
        """The best nodes now, as many as the need says; a node where the model failed only when there is no other way."""
        for desperate in (False, True):
            for groups in self._tiers:
                best: list[tuple[_GangRank, int, Seat]] | None = None
                for key, group in list(groups.items()):
                    found = group.best(self._count, self._ranked)
                    if len(found) < self._count:
                        del groups[key]  # room only gets less
                    elif (desperate or not found[-1][0][0]) and (best is None or _order(found) < _order(best)):
                        best = found
                if best is not None:
                    return [seat for _, _, seat in best]
        return None


def _order(found: list[tuple[_GangRank, int, Seat]]) -> list[_GangRank]:
    """The worst node decides first."""
    return [rank for rank, _, _ in reversed(found)]
