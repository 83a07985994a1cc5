"""What holds for the planner whatever happens."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from llmgw_coordinator.planner import Assigned, Create, Move, Plan, Update, plan
from llmgw_coordinator.planner.profiles import profile_of
from llmgw_proto.records import AssignmentRecord, ModelSpec, Profile, ShardState
from llmgw_testing.worlds import Simulation, counting_text, model, node, profile

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
        gpus=st.lists(st.integers(0, 4), min_size=4, max_size=4),
        memory=st.lists(st.integers(2, 12), min_size=4, max_size=4),
        replicas=st.lists(st.integers(0, 4), min_size=3, max_size=3),
        chosen=st.lists(st.sampled_from(PROFILES), min_size=3, max_size=3),
    )
    def start(self, gpus: list[int], memory: list[int], replicas: list[int], chosen: list[Profile]) -> None:
        for index, name in enumerate(NODES):
            labels = {"zone": "x"} if index % 2 else {}
            self.simulation.nodes[name] = node(name, gpus=gpus[index], memory=memory[index], labels=labels)
        for name, count, one in zip(MODELS, replicas, chosen, strict=True):
            self.simulation.models[name] = model(name, count, one)
        self.settles()

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

    @rule(again=st.booleans())
    def plan_once(self, again: bool) -> None:
        self.checked_step()
        if again:
            self.checked_step()

    @rule()
    def settles(self) -> None:
        """Planning and applying comes to an end, and then every wish is fulfilled or its lack explained."""
        for _ in range(200):
            outcome = self.checked_step()
            if not self.simulation.agents() and not outcome.decisions:
                break
        else:
            raise AssertionError(f"no end; the last pass decided {outcome.decisions}")
        for name, spec in self.simulation.models.items():
            placed = len(self.simulation.of_model(name))
            assert placed >= spec.replicas.min or outcome.reasons.get(name), f"{name} has {placed}, and nothing says why"
            # More than wished only while an older spec is being replaced, or while nobody knows what became of a node.
            known = all(self.simulation.alive(each) for each in NODES)
            assert placed <= spec.replicas.min + bool(outcome.outdated.get(name)) or not known

    def checked_step(self) -> Plan:
        simulation = self.simulation
        before = list(simulation.assigned.values())
        outcome = simulation.step()
        assert not outcome.failures
        for decision in outcome.decisions:
            if isinstance(decision, Create):
                assert decision.record.replica not in {each.record.replica for each in before}
                assert simulation.alive(decision.node)
                continue
            source = decision.source
            assert source in before
            if isinstance(decision, Update):
                assert (decision.record.replica, decision.record.epoch) == (source.record.replica, source.record.epoch)
                assert decision.record.gpus == source.record.gpus
            elif isinstance(decision, Move):
                assert not outcome.problems, "under the brake nothing moves"
                assert (decision.record.replica, decision.record.model) == (source.record.replica, source.record.model)
                assert decision.record.epoch == source.record.epoch + 1
                assert simulation.alive(decision.node)
                assert decision.node not in source.record.tried
                self.was_in_trouble(source)
            else:
                wished = simulation.models.get(source.record.model)
                enough = sum(each.record.model == source.record.model for each in before)
                assert wished is None or enough > wished.replicas.min or self.is_outdated(wished, source), "it was needed"
        return outcome

    def was_in_trouble(self, source: Assigned) -> None:
        """What is fine does not move."""
        gone = self.simulation.nodes[source.node].gone_for
        shard = self.simulation.shards.get((source.node, source.record.shard))
        given_up = shard is not None and shard.state in (ShardState.REJECTED, ShardState.FAILED)
        assert given_up or (gone is not None and gone >= 60)

    @staticmethod
    def is_outdated(spec: ModelSpec, source: Assigned) -> bool:
        return profile_of(spec, source.record) is None

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
    derandomize=True, max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestCluster = Cluster.TestCase


AGES = st.one_of(st.none(), st.integers(0, 400).map(float))


@given(ages=st.lists(AGES, min_size=1, max_size=12))
@settings(derandomize=True, deadline=None, max_examples=300)
def test_the_brake_holds_exactly_when_too_many_vanish_within_one_window(ages: list[float | None]) -> None:
    simulation = Simulation()
    for index, age in enumerate(ages):
        simulation.nodes[f"n{index:02}"] = replace(node(f"n{index:02}"), gone_for=age)
    simulation.models["m"] = model("m", len(ages))
    for index in range(len(ages)):
        wish = AssignmentRecord(
            shard=f"m-{index}.0", replica=f"m-{index}", model="m", epoch=1, engine="llamacpp", source="/w.gguf"
        )
        simulation.assigned[f"n{index:02}", wish.shard] = Assigned(f"n{index:02}", wish, index)
    gone = [age for age in ages if age is not None]
    together = max((sum(start <= age <= start + 60 for age in gone) for start in gone), default=0)
    outcome = simulation.plan()
    assert bool(outcome.problems) is (together >= 2 and together > 0.3 * len(ages))
    moved = {each.source.node for each in outcome.decisions if isinstance(each, Move)}
    lost = {f"n{index:02}" for index, age in enumerate(ages) if age is not None and age >= 60}
    assert moved == (set() if outcome.problems or len(gone) == len(ages) else lost)


@given(data=st.data(), replicas=st.lists(st.integers(0, 4), min_size=1, max_size=4), order=st.randoms())
@settings(derandomize=True, deadline=None, max_examples=100)
def test_a_plan_does_not_depend_on_the_order_in_which_things_are_listed(
    data: st.DataObject, replicas: list[int], order: Random
) -> None:
    nodes = [node(name, gpus=data.draw(st.integers(0, 4)), memory=data.draw(st.integers(2, 12))) for name in NODES]
    models = [model(f"m{index}", count, data.draw(st.sampled_from(PROFILES))) for index, count in enumerate(replicas)]
    simulation = Simulation.of(models, nodes)
    simulation.settle()
    name = data.draw(st.sampled_from(NODES))
    simulation.lose(name)
    world = simulation.world()
    assignments, shards = list(world.assignments), list(world.shards)
    order.shuffle(assignments)
    order.shuffle(shards)
    shuffled = replace(
        world,
        nodes=dict(sorted(world.nodes.items(), key=lambda _: order.random())),
        models=dict(sorted(world.models.items(), key=lambda _: order.random())),
        assignments=assignments,
        shards=shards,
    )
    assert plan(world, counting_text()).decisions == plan(shuffled, counting_text()).decisions
