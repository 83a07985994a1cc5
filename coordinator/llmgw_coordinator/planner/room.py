"""What is free on each node, kept up to date while a pass gives things away."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from llmgw_coordinator.planner.data import Assigned, Node, Settings
from llmgw_coordinator.planner.gpus import Choice, Kind, choose, class_of, is_part, kinds_of, near, same_class
from llmgw_proto.records import GpuFacts, ShardRecord, VersionOverride

#: What one shard holds: GPUs and bytes of memory.
Claim: TypeAlias = tuple[set[str], int]
Claims: TypeAlias = dict[tuple[str, str], Claim]


@dataclass(frozen=True, slots=True)
class Need:
    """What one replica takes under one profile, from each of its nodes."""

    engine: str
    gpus: int
    memory: int
    selector: tuple[tuple[str, str], ...] = ()
    gpu_class: str | None = None
    nodes: int = 1
    version: str | None = None
    versions: tuple[VersionOverride, ...] = field(default=(), compare=False)


class Room:
    """One node's free memory and GPUs."""

    __slots__ = (
        "_choices",
        "_healthy",
        "_held",
        "_inventory",
        "_kinds",
        "_uniform",
        "engines",
        "free_gpus",
        "free_memory",
        "labels",
        "name",
        "open",
        "replicas",
        "total_gpus",
        "total_memory",
    )

    def __init__(self, node: Node, settings: Settings) -> None:
        inventory = node.inventory
        self._inventory = inventory
        self.name = node.name
        self.open = node.alive and node.closed is None and inventory is not None
        self.engines = frozenset(engine.name for engine in inventory.engines) if inventory else frozenset[str]()
        self.labels: Mapping[str, str] = inventory.labels if inventory else {}
        self.free_gpus: list[GpuFacts] = [gpu for gpu in inventory.gpus if gpu.quarantine is None] if inventory else []
        self._healthy = self.free_gpus
        self._held: dict[str, int] = {}
        self.total_gpus = len(inventory.gpus) if inventory else 0
        self.total_memory = max(0, inventory.memory.total_bytes - settings.reserved_bytes) if inventory else 0
        self.free_memory = self.total_memory
        self.replicas = 0
        self._kinds: list[Kind] | None = None
        self._choices: dict[tuple[int, str | None], Choice | None] = {}
        self._uniform = self._find_uniform()

    def _find_uniform(self) -> int | None:
        """The tier of several GPUs if all are alike and joined alike, so that counting them is enough; else None."""
        gpus = self._inventory.gpus if self._inventory is not None else []
        if self._inventory is None or not gpus:
            return 2
        first = class_of(gpus[0])
        if is_part(gpus[0]) or any(class_of(gpu) != first for gpu in gpus):
            return None
        if not self._inventory.topology.get("islands"):
            return 2
        (kind,) = self.kinds
        return 0 if kind.uuids in (kind.groups or kind.islands) else None

    @property
    def kinds(self) -> list[Kind]:
        if self._kinds is None:
            self._kinds = kinds_of(self._inventory) if self._inventory is not None else []
        return self._kinds

    @property
    def known(self) -> bool:
        """Whether the node has said what it has."""
        return self._inventory is not None

    def hold(self, gpus: Iterable[str], memory: int) -> None:
        """Takes what something that exists already occupies."""
        taken = set(gpus)
        if taken:
            for uuid in taken:
                self._held[uuid] = self._held.get(uuid, 0) + 1
            self.free_gpus = [gpu for gpu in self.free_gpus if gpu.uuid not in taken]
            self._choices.clear()
        self.free_memory -= memory
        self.replicas += 1

    def release(self, gpus: Iterable[str], memory: int) -> None:
        """Undoes :meth:`hold`; a GPU that something else occupies too stays taken."""
        for uuid in gpus:
            self._held[uuid] -= 1
        self.free_gpus = [gpu for gpu in self._healthy if not self._held.get(gpu.uuid)]
        self._choices.clear()
        self.free_memory += memory
        self.replicas -= 1

    def offers(self, need: Need) -> bool:
        """Whether the node is the right kind, room aside."""
        return (
            self.open
            and need.engine in self.engines
            and all(self.labels.get(key) == value for key, value in need.selector)
            and (need.gpu_class is None or self.has_class(need.gpu_class))
        )

    def has_class(self, gpu_class: str) -> bool:
        return any(same_class(kind.name, gpu_class) for kind in self.kinds)

    def has_room(self, need: Need) -> bool:
        """For a replica on a node of the right kind."""
        if self.free_memory < need.memory or len(self.free_gpus) < need.gpus:
            return False
        return self._uniform is not None or need.gpus == 0 or self.choice(need) is not None

    def choice(self, need: Need) -> Choice | None:
        """The GPUs that the need would get, and how well they are joined."""
        return self.choice_of(need.gpus, need.gpu_class)

    def choice_of(self, count: int, gpu_class: str | None) -> Choice | None:
        """So many GPUs of this class (None: of any one class); None if they cannot be had together."""
        if self._uniform is not None:
            if len(self.free_gpus) < count:
                return None
            return (self._uniform if count > 1 else 0), near(self.free_gpus, count)
        if (count, gpu_class) not in self._choices:
            self._choices[count, gpu_class] = choose(self.free_gpus, count, self.kinds, gpu_class)
        return self._choices[count, gpu_class]

    def most_together(self, need: Need) -> int:
        """How many free GPUs a replica could have, no more than the need says."""
        if self._uniform is not None:
            return min(len(self.free_gpus), need.gpus)
        return next((count for count in range(need.gpus, 0, -1) if self.choice_of(count, need.gpu_class) is not None), 0)

    def tier(self, need: Need) -> int:
        """How well the GPUs that the need would get are joined, see :mod:`gpus`; there must be room."""
        if need.gpus < 2:
            return 0
        if self._uniform is not None:
            return self._uniform
        found = self.choice(need)
        return found[0] if found is not None else 2

    def take(self, need: Need) -> list[str]:
        """Claims the need, for which there must be room, and returns the UUIDs of the GPUs claimed."""
        found = self.choice(need) if need.gpus else None
        chosen = [gpu.uuid for gpu in found[1]] if found is not None else []
        self.hold(chosen, need.memory)
        return chosen

    def class_of(self, gpus: Iterable[str]) -> str | None:
        """The class of a replica's GPUs; None for one without GPUs, or with GPUs that the node has no longer."""
        wanted = set(gpus)
        known = self._inventory.gpus if wanted and self._inventory is not None else []
        return next((class_of(gpu) for gpu in known if gpu.uuid in wanted), None)

    def version_of(self, engine: str) -> str:
        """What runs there when no version is wished; "" if that is not known."""
        listed = [each for each in self._inventory.engines if each.name == engine] if self._inventory is not None else []
        default = next((each for each in listed if each.default), listed[-1] if listed else None)
        return default.version if default is not None else ""


def claims_of(assignments: Iterable[Assigned], shards: Iterable[ShardRecord], estimates: Mapping[str, int]) -> Claims:
    """By (node, shard). An assignment and the shard that came from it count once; a shard that is left counts as held."""
    claims: Claims = {}
    for shard in shards:
        claims[shard.node, shard.shard] = (set(shard.gpus), shard.memory_bytes)
    for assigned in assignments:
        record = assigned.record
        gpus, memory = claims.get((assigned.node, record.shard), (set[str](), 0))
        wished = record.memory_bytes or memory or estimates.get(record.model, 0)
        claims[assigned.node, record.shard] = (gpus | set(record.gpus), max(memory, wished))
    return claims


def build_rooms(nodes: Mapping[str, Node], claims: Claims, settings: Settings) -> dict[str, Room]:
    """Free room by node."""
    rooms = {name: Room(node, settings) for name, node in nodes.items()}
    for (node, _), (gpus, memory) in claims.items():
        if node in rooms:
            rooms[node].hold(gpus, memory)
    return rooms
