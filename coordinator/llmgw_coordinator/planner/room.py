"""What is free on each node, kept up to date while a pass gives things away."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from llmgw_coordinator.planner.data import Assigned, Node, Settings
from llmgw_proto.records import GpuFacts, ShardRecord


@dataclass(frozen=True, slots=True)
class Need:
    """What one replica takes from a node under one profile."""

    engine: str
    gpus: int
    memory: int
    selector: tuple[tuple[str, str], ...] = ()


class Room:
    """One node's free memory and GPUs."""

    __slots__ = (
        "_healthy",
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
        self.name = node.name
        self.open = node.alive and node.closed is None and inventory is not None
        self.engines = frozenset(engine.name for engine in inventory.engines) if inventory else frozenset[str]()
        self.labels: Mapping[str, str] = inventory.labels if inventory else {}
        self.free_gpus: list[GpuFacts] = [gpu for gpu in inventory.gpus if gpu.quarantine is None] if inventory else []
        self._healthy = frozenset(gpu.uuid for gpu in self.free_gpus)
        self.total_gpus = len(inventory.gpus) if inventory else 0
        self.total_memory = max(0, inventory.memory.total_bytes - settings.reserved_bytes) if inventory else 0
        self.free_memory = self.total_memory
        self.replicas = 0

    def hold(self, gpus: Iterable[str], memory: int) -> None:
        """Takes what something that exists already occupies."""
        taken = set(gpus)
        if taken:
            self.free_gpus = [gpu for gpu in self.free_gpus if gpu.uuid not in taken]
        self.free_memory -= memory
        self.replicas += 1

    def offers(self, need: Need) -> bool:
        """Whether the node is the right kind, room aside."""
        return self.open and need.engine in self.engines and all(self.labels.get(key) == value for key, value in need.selector)

    def has_room(self, need: Need) -> bool:
        return len(self.free_gpus) >= need.gpus and self.free_memory >= need.memory

    def take(self, need: Need) -> list[str]:
        """Claims the need and returns the UUIDs of the GPUs claimed."""
        chosen = choose_gpus(self.free_gpus, need.gpus)
        self.hold(chosen, need.memory)
        return chosen

    def has_room_after(self, need: Need, gpus: Iterable[str], memory: int) -> bool:
        """Whether there would be room if these GPUs and this memory were given back."""
        given_back = (self._healthy & set(gpus)) - {gpu.uuid for gpu in self.free_gpus}
        return len(self.free_gpus) + len(given_back) >= need.gpus and self.free_memory + memory >= need.memory


def choose_gpus(free: Sequence[GpuFacts], count: int) -> list[str]:
    """GPUs of one NUMA domain if one has enough, the fullest such domain first, so that whole domains stay free."""
    if count == 0:
        return []
    domains: dict[int | None, list[GpuFacts]] = {}
    for gpu in free:
        domains.setdefault(gpu.numa, []).append(gpu)
    fitting = [each for each in domains.values() if len(each) >= count]
    pool = min(fitting, key=lambda each: (len(each), _order(each[0]))) if fitting else list(free)
    return [gpu.uuid for gpu in sorted(pool, key=_order)[:count]]


def _order(gpu: GpuFacts) -> tuple[str, str]:
    return gpu.pci, gpu.uuid


def build_rooms(
    nodes: Mapping[str, Node],
    assignments: Iterable[Assigned],
    shards: Iterable[ShardRecord],
    estimates: Mapping[str, int],
    settings: Settings,
) -> dict[str, Room]:
    """Free room by node. An assignment and the shard that came from it count once; a shard that is left counts as held."""
    rooms = {name: Room(node, settings) for name, node in nodes.items()}
    claims: dict[tuple[str, str], tuple[set[str], int]] = {}
    for shard in shards:
        claims[shard.node, shard.shard] = (set(shard.gpus), shard.memory_bytes)
    for assigned in assignments:
        record = assigned.record
        gpus, memory = claims.get((assigned.node, record.shard), (set[str](), 0))
        wished = record.memory_bytes or memory or estimates.get(record.model, 0)
        claims[assigned.node, record.shard] = (gpus | set(record.gpus), max(memory, wished))
    for (node, _), (gpus, memory) in claims.items():
        if node in rooms:
            rooms[node].hold(gpus, memory)
    return rooms
