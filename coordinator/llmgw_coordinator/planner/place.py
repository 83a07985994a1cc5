"""The choice of a node: replicas of a model spread over nodes first, then the node that is left with the least."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from llmgw_coordinator.planner.room import Need, Room

_Rank: TypeAlias = tuple[bool, int, int, int, int, str]


class Rooms:
    """All nodes' rooms, with those of one kind (engine and labels) found once."""

    def __init__(self, rooms: Mapping[str, Room]) -> None:
        self._rooms = rooms
        self._kinds: dict[tuple[str, tuple[tuple[str, str], ...]], list[Room]] = {}

    def __getitem__(self, node: str) -> Room:
        return self._rooms[node]

    def all(self) -> Iterable[Room]:
        return self._rooms.values()

    def of_kind(self, need: Need) -> list[Room]:
        kind = (need.engine, need.selector)
        if kind not in self._kinds:
            self._kinds[kind] = [room for room in self._rooms.values() if room.offers(need)]
        return self._kinds[kind]


@dataclass(slots=True)
class Spread:
    """Where one model's replicas are, as far as that influences where further ones go."""

    counts: Counter[str] = field(default_factory=Counter)
    shunned: set[str] = field(default_factory=set)
    """Nodes on which this model failed for good; taken only when no other fits."""

    def rank(self, room: Room, need: Need) -> _Rank:
        """Lower is better. With the need for memory unknown, best fit would heap everything on one node, so nodes with few
        replicas and much memory come first then.
        """
        name = room.name
        known = need.memory > 0
        return (
            name in self.shunned,
            self.counts[name],
            len(room.free_gpus),
            room.free_memory if known else room.replicas,
            0 if known else -room.free_memory,
            name,
        )


def best(rooms: Rooms, need: Need, spread: Spread, avoid: Container[str]) -> Room | None:
    """The best node with room that is not in ``avoid``."""
    fitting = (room for room in rooms.of_kind(need) if room.name not in avoid and room.has_room(need))
    return min(fitting, key=lambda room: spread.rank(room, need), default=None)


class Picker:
    """Picks nodes for many replicas of one model, one after the other, ranking every node once."""

    def __init__(self, rooms: Rooms, need: Need, spread: Spread) -> None:
        self._need = need
        self._spread = spread
        self._heap = [(spread.rank(room, need), room) for room in rooms.of_kind(need) if room.has_room(need)]
        heapq.heapify(self._heap)

    def pick(self) -> Room | None:
        """The best node now. Ranks only get worse while replicas are placed, so a stale one is ranked anew when it comes up."""
        while self._heap:
            rank, room = self._heap[0]
            if not room.has_room(self._need):
                heapq.heappop(self._heap)
                continue
            now = self._spread.rank(room, self._need)
            if now == rank:
                return room
            heapq.heapreplace(self._heap, (now, room))
        return None
