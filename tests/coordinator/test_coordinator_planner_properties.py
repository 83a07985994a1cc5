"""What holds for the planner whatever happens."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from llmgw_coordinator.planner import Create, Move, Update
from llmgw_proto.records import Profile, ShardState
from llmgw_testing.worlds import Simulation, model, node, profile

NODES = ["n1", "n2", "n3", "n4"]
MODELS = ["a", "b", "c"]
PROFILES = [
    profile(memory="2GiB"),
    profile(memory="5GiB", gpus=1),
    profile(memory="1GiB", gpus=2),
    profile(memory="3GiB", node_selector={"zone": "x"}),
]


class Cluster(RuleBasedStateMachine):
    """Operators, nodes and agents do anything in any order; the planner's decisions are applied between."""

    def __init__(self) -> None:
        super().__init__()
        self.simulation = Simulation()

    @initialize(
        gpus=st.lists(st.integers(0, 4), min_size=4, max_size=4), memory=st.lists(st.integers(2, 12), min_size=4, max_size=4)
    )
    def start(self, gpus: list[int], memory: list[int]) -> None:
        for index, name in enumerate(NODES):
            labels = {"zone": "x"} if index % 2 else {}
            self.simulation.nodes[name] = node(name, gpus=gpus[index], memory=memory[index], labels=labels)

    @rule(
        name=st.sampled_from(MODELS),
        replicas=st.integers(0, 5),
        chosen=st.lists(st.sampled_from(PROFILES), min_size=1, max_size=2),
    )
    def apply_model(self, name: str, replicas: int, chosen: list[Profile]) -> None:
        generation = self.simulation.models[name].generation + 1 if name in self.simulation.models else 1
        self.simulation.models[name] = model(name, replicas, *chosen, generation=generation)

    @rule(name=st.sampled_from(MODELS), replicas=st.integers(0, 5))
    def scale(self, name: str, replicas: int) -> None:
        if name in self.simulation.models:
            self.simulation.scale(name, replicas)

    @rule(name=st.sampled_from(MODELS))
    def remove(self, name: str) -> None:
        self.simulation.models.pop(name, None)

    @rule(name=st.sampled_from(NODES), seconds=st.sampled_from([1.0, 70.0, 500.0, 900.0]))
    def lose(self, name: str, seconds: float) -> None:
        self.simulation.lose(name, seconds=seconds)

    @rule(name=st.sampled_from(NODES))
    def come_back(self, name: str) -> None:
        self.simulation.nodes[name] = replace(self.simulation.nodes[name], gone_for=None)

    @precondition(lambda self: self.simulation.assigned)
    @rule(
        data=st.data(), state=st.sampled_from([ShardState.REJECTED, ShardState.FAILED, ShardState.STARTING, ShardState.SUSPECT])
    )
    def report(self, data: st.DataObject, state: ShardState) -> None:
        each = data.draw(st.sampled_from(sorted(self.simulation.assigned.values(), key=lambda each: each.record.replica)))
        if self.simulation.alive(each.node):
            self.simulation.report(each.record.replica, state, reason="so it is")

    @rule()
    def agents_follow(self) -> None:
        self.simulation.agents()

    @rule()
    def plan_once(self) -> None:
        before = list(self.simulation.assigned.values())
        outcome = self.simulation.step()
        assert not outcome.failures
        for decision in outcome.decisions:
            if not isinstance(decision, Create):
                assert decision.source in before
            if isinstance(decision, Move):
                assert decision.record.epoch == decision.source.record.epoch + 1
            if isinstance(decision, Move | Update):
                assert decision.source.record.model == decision.record.model, "a decision stays within its model"
                assert decision.source.record.replica == decision.record.replica

    @rule()
    def settles(self) -> None:
        """Planning and applying comes to an end, and with everything well the wish is fulfilled or its lack explained."""
        outcome = self.simulation.settle()
        for name, spec in self.simulation.models.items():
            placed = len(self.simulation.of_model(name))
            if placed < spec.replicas.min:
                assert outcome.reasons.get(name), f"{name} has {placed} of {spec.replicas.min} and nothing says why"

    @invariant()
    def no_gpu_twice_and_no_more_memory_than_there_is(self) -> None:
        for name, each in self.simulation.nodes.items():
            assert each.inventory is not None
            held: dict[str, tuple[set[str], int]] = {}
            for (place, shard), truth in self.simulation.shards.items():
                if place == name:
                    held[shard] = (set(truth.gpus), truth.memory_bytes)
            for (place, shard), wish in self.simulation.assigned.items():
                if place == name:
                    gpus, memory = held.get(shard, (set[str](), 0))
                    held[shard] = (gpus | set(wish.record.gpus), max(memory, wish.record.memory_bytes))
            uses = Counter(gpu for gpus, _ in held.values() for gpu in gpus)
            assert not [gpu for gpu, count in uses.items() if count > 1]
            assert set(uses) <= {gpu.uuid for gpu in each.inventory.gpus}
            assert sum(memory for _, memory in held.values()) <= each.inventory.memory.total_bytes, f"more than {name} has"

    @invariant()
    def one_place_per_replica(self) -> None:
        places = Counter(each.record.replica for each in self.simulation.assigned.values())
        assert not [replica for replica, count in places.items() if count > 1]


Cluster.TestCase.settings = settings(
    max_examples=150, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestCluster = Cluster.TestCase
