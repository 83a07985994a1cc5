"""Small worlds for the planner, and a simulation that carries its decisions out as agents would."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from llmgw_coordinator.planner import Assigned, Create, Decision, Delete, Node, Plan, Settings, Update, World, plan
from llmgw_proto.records import (
    AssignmentRecord,
    CpuFacts,
    EngineInfo,
    FabricMapRecord,
    GpuFacts,
    InventoryRecord,
    MemoryFacts,
    ModelSpec,
    Profile,
    ReplicaRange,
    ShardRecord,
    ShardState,
)

GIB = 2**30
#: No memory set aside, so that numbers in tests are round.
SETTINGS = Settings(grace=60, reserved_bytes=0)


def node(
    name: str,
    *,
    gpus: int = 0,
    memory: int = 64,
    engines: Sequence[str] = ("llamacpp", "command"),
    labels: dict[str, str] | None = None,
    quarantined: Sequence[int] = (),
    gone_for: float | None = None,
    closed: str | None = None,
    gpu_class: str | Sequence[str] = "",
    islands: Sequence[Sequence[int]] = (),
    groups: Sequence[Sequence[int]] = (),
    version: str = "1",
    topology: dict[str, Any] | None = None,
) -> Node:
    """``memory`` in GiB; GPU UUIDs are ``<name>-g<index>``, and ``islands`` and ``groups`` hold such indices; ``gpu_class`` of
    all GPUs or one by one; ``version`` of all engines.
    """

    def uuids(sets: Sequence[Sequence[int]]) -> list[list[str]]:
        return [[f"{name}-g{index}" for index in each] for each in sets]

    classes = [gpu_class] * gpus if isinstance(gpu_class, str) else gpu_class
    inventory = InventoryRecord(
        node=name,
        version="0",
        boot_id="boot",
        hostname=name,
        cpu=CpuFacts(cores=8),
        memory=MemoryFacts(total_bytes=memory * GIB),
        gpus=[
            GpuFacts(
                uuid=f"{name}-g{index}",
                name="H100",
                gpu_class=classes[index],
                memory_bytes=80 * GIB,
                pci=f"{index:02}",
                numa=index // 4,
                quarantine="broken" if index in quarantined else None,
            )
            for index in range(gpus)
        ],
        engines=[EngineInfo(name=each, version=version) for each in engines],
        labels=labels or {},
        topology={"islands": [{"uuids": each} for each in uuids(islands)], "tp_groups": uuids(groups or islands)}
        | (topology or {}),
    )
    return Node(name, inventory, gone_for, closed=closed)


def profile(engine: str = "llamacpp", **fields: Any) -> Profile:
    return Profile(engine=engine, **fields)


def model(name: str = "m", replicas: int = 1, *profiles: Profile, **fields: Any) -> ModelSpec:
    return ModelSpec(
        name=name, source="/w.gguf", profiles=list(profiles) or [profile()], replicas=ReplicaRange(min=replicas), **fields
    )


def counting_text() -> Callable[[], str]:
    """Ids that count up instead of random ones."""
    numbers = itertools.count(1)
    return lambda: f"{next(numbers):05}"


def shard_of(node_name: str, wish: AssignmentRecord, state: ShardState = ShardState.READY, **fields: Any) -> ShardRecord:
    return ShardRecord(
        shard=wish.shard,
        replica=wish.replica,
        model=wish.model,
        node=node_name,
        rank=wish.rank,
        epoch=wish.epoch,
        state=state,
        engine=wish.engine,
        gpus=wish.gpus,
        memory_bytes=fields.pop("memory_bytes", wish.memory_bytes),
        updated_at=0.0,
        **fields,
    )


@dataclass
class Simulation:
    """A cluster in memory: ``step`` plans and applies, ``agents`` makes shards follow assignments."""

    models: dict[str, ModelSpec] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    assigned: dict[tuple[str, str], Assigned] = field(default_factory=dict)
    shards: dict[tuple[str, str], ShardRecord] = field(default_factory=dict)
    settings: Settings = SETTINGS
    unreadable: frozenset[str] = frozenset()
    fabrics: Sequence[FabricMapRecord] = ()

    def __post_init__(self) -> None:
        self._text = counting_text()
        self._revision = itertools.count(1)

    @classmethod
    def of(cls, models: Sequence[ModelSpec], nodes: Sequence[Node], **fields: Any) -> Simulation:
        return cls({each.name: each for each in models}, {each.name: each for each in nodes}, **fields)

    def world(self) -> World:
        return World(
            self.models,
            self.nodes,
            list(self.assigned.values()),
            list(self.shards.values()),
            self.unreadable,
            self.settings,
            fabrics=self.fabrics,
        )

    def plan(self) -> Plan:
        return plan(self.world(), self._text)

    def step(self) -> Plan:
        outcome = self.plan()
        for decision in outcome.decisions:
            self.apply(decision)
        return outcome

    def settle(self, *, agents: bool = True, limit: int = 200) -> Plan:
        """Plans, applies and lets agents follow until a pass decides nothing; returns that pass."""
        for _ in range(limit):
            outcome = self.step()
            followed = agents and self.agents()
            if not outcome.decisions and not followed:
                return outcome
        raise AssertionError(f"no end after {limit} passes; the last one decided {outcome.decisions}")

    def apply(self, decision: Decision) -> None:
        """As the fenced transactions do, refusing what they would refuse."""
        for source in () if isinstance(decision, Create) else decision.sources:
            key = (source.node, source.record.shard)
            assert self.assigned.get(key) == source, "it was decided about something else"
            del self.assigned[key]
        for index, each in enumerate(() if isinstance(decision, Delete) else decision.shards):
            key = (each.node, each.record.shard)
            assert key not in self.assigned, "two assignments under one key"
            created = decision.sources[index].created if isinstance(decision, Update) else next(self._revision)
            self.assigned[key] = Assigned(each.node, each.record, created)

    def agents(self, *, state: ShardState = ShardState.READY) -> bool:
        """Live nodes stop what is assigned no longer and bring the rest to ``state``, what has failed excepted.

        Returns whether anything changed.
        """
        before = dict(self.shards)
        for key in [key for key in self.shards if key not in self.assigned and self.alive(key[0])]:
            del self.shards[key]
        for (name, shard), each in self.assigned.items():
            known = self.shards.get((name, shard))
            if self.alive(name) and (known is None or known.epoch < each.record.epoch or known.state is not ShardState.FAILED):
                if known is not None and known.epoch == each.record.epoch and known.state is ShardState.REJECTED:
                    continue
                self.shards[name, shard] = shard_of(name, each.record, state)
        return self.shards != before

    def alive(self, name: str) -> bool:
        return name in self.nodes and self.nodes[name].alive

    def report(self, replica: str, state: ShardState, rank: int = 0, **fields: Any) -> None:
        """The agent says this about the replica's shard of that rank where it is assigned."""
        found = (each for each in self.assigned.values() if each.record.replica == replica and each.record.rank == rank)
        each = max(found, key=lambda each: each.record.epoch)
        self.shards[each.node, each.record.shard] = shard_of(each.node, each.record, state, **fields)

    def lose(self, *names: str, seconds: float = 1e6) -> None:
        for name in names:
            self.nodes[name] = replace(self.nodes[name], gone_for=seconds)

    def change(self, name: str, **fields: Any) -> None:
        spec = self.models[name]
        self.models[name] = spec.model_copy(update={"generation": spec.generation + 1, **fields})

    def scale(self, name: str, replicas: int) -> None:
        self.change(name, replicas=ReplicaRange(min=replicas))

    def places(self, name: str) -> list[str]:
        """Nodes of the model's replicas, sorted."""
        return sorted(each.node for each in self.of_model(name))

    def of_model(self, name: str) -> list[Assigned]:
        """All shards."""
        return [each for each in self.assigned.values() if each.record.model == name]

    def replicas(self, name: str | None = None) -> dict[str, list[Assigned]]:
        """By id, the shards by epoch and rank; of this model or of all."""
        found: dict[str, list[Assigned]] = {}
        for each in sorted(self.assigned.values(), key=lambda each: (each.record.epoch, each.record.rank)):
            if name is None or each.record.model == name:
                found.setdefault(each.record.replica, []).append(each)
        return found


def deletes(outcome: Plan) -> list[str]:
    """Replica ids, in the order decided."""
    return [each.sources[0].record.replica for each in outcome.decisions if isinstance(each, Delete)]
