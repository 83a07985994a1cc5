"""The choice of a node: replicas of a model spread over nodes first, then the node that is left with the least."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Container, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from llmgw_coordinator.planner.data import Node
from llmgw_coordinator.planner.fabric import Attachment, Fabrics
from llmgw_coordinator.planner.room import Claim, Claims, Need, Room

Rank: TypeAlias = tuple[bool, int, int, int, int, int, str]


class Rooms:
    """All nodes' rooms, with those of one kind (engine, labels, class of GPU) found once."""

    def __init__(self, rooms: Mapping[str, Room], claims: Claims, nodes: Mapping[str, Node], fabrics: Fabrics) -> None:
        self._rooms = rooms
        self._claims = claims
        self._nodes = nodes
        self._fabrics = fabrics
        self._kinds: dict[tuple[object, ...], list[Room]] = {}
        self._numbers: dict[Hashable, int] = {}
        self.notes: dict[Hashable, Any] = {}
        """What was found out about nodes of a kind, for whoever asks again in this pass."""
        self._by_replica: dict[str, list[tuple[str, Claim]]] | None = None

    def get(self, node: str) -> Room | None:
        return self._rooms.get(node)

    def all(self) -> Iterable[Room]:
        return self._rooms.values()

    def of_kind(self, need: Need) -> list[Room]:
        kind = (need.engine, need.selector, need.gpu_class)
        if kind not in self._kinds:
            self._kinds[kind] = [room for room in self._rooms.values() if room.offers(need)]
        return self._kinds[kind]

    def attachment(self, node: str) -> Attachment:
        return self._fabrics.of(node, self._nodes[node].inventory)

    def number(self, value: Hashable) -> int:
        """The same for equal values."""
        return self._numbers.setdefault(value, len(self._numbers))

    def release(self, replica: str) -> None:
        """As if all that there is of it had ended, here and where it was before."""
        for node, (gpus, memory) in self._claims_of(replica):
            self._rooms[node].release(gpus, memory)

    def hold(self, replica: str) -> None:
        """Undoes :meth:`release`."""
        for node, (gpus, memory) in self._claims_of(replica):
            self._rooms[node].hold(gpus, memory)

    def hold_rest(self, replica: str, given: Mapping[str, Container[str]]) -> None:
        """After :meth:`release`: what it occupies until it has ended, but for what was given to its successor: GPUs by node.

        The successor of a shard on the same node starts when that has ended, in its memory.
        """
        for node, (gpus, memory) in self._claims_of(replica):
            taken = given.get(node)
            if taken is None:
                self._rooms[node].hold(gpus, memory)
            else:
                self._rooms[node].hold([gpu for gpu in gpus if gpu not in taken], 0)

    def _claims_of(self, replica: str) -> list[tuple[str, Claim]]:
        if self._by_replica is None:
            self._by_replica = {}
            for (node, shard), claim in self._claims.items():
                if node in self._rooms:
                    self._by_replica.setdefault(shard.rpartition(".")[0], []).append((node, claim))
        return self._by_replica.get(replica, [])


@dataclass(slots=True)
class Spread:
    """Where one model's replicas are, as far as that influences where further ones go."""

    counts: Counter[str] = field(default_factory=Counter)
    shunned: set[str] = field(default_factory=set)
    """Nodes on which this model failed for good; taken only when no other fits."""

    def rank(self, room: Room, need: Need) -> Rank:
        """Lower is better. With the need for memory unknown, best fit would heap everything on one node, so nodes with few
        replicas and much memory come first then.
        """
        name = room.name
        known = need.memory > 0
        return (
            name in self.shunned,
            self.counts[name],
            room.tier(need) if need.gpus > 1 else 0,
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
