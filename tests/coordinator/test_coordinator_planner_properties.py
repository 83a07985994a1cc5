"""What holds for the planner whatever happens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from llmgw_coordinator.planner import Assigned, Create, Move, Placed, Plan, Update, plan
from llmgw_coordinator.planner.profiles import profile_of
from llmgw_proto.records import AssignmentRecord, Profile, ShardState
from llmgw_testing.worlds import Simulation, counting_text, model, node, profile

NODES = ["n1", "n2", "n3", "n4"]
MODELS = ["a", "b", "c"]
PROFILES = [
    profile(memory="2GiB"),
    profile(memory="5GiB", gpus=1),
    profile(memory="1GiB", gpus=2),
    profile(memory="3GiB", node_selector={"zone": "x"}),
    profile(memory="2GiB", nodes=2),
    profile(memory="1GiB", gpus=1, nodes=2),
    profile(memory="1GiB", gpus=2, nodes=2),
    profile(memory="1GiB", gpus=1, nodes=3),
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
        mixed=st.lists(st.booleans(), min_size=4, max_size=4),
        paired=st.booleans(),
    )
    def start(
        self,
        gpus: list[int],
        memory: list[int],
        replicas: list[int],
        chosen: list[Profile],
        mixed: list[bool],
        paired: bool,
    ) -> None:
        for index, name in enumerate(NODES):
            labels = {"zone": "x"} if index % 2 else {}
            classes = ["B" if mixed[index] and gpu % 2 else "A" for gpu in range(gpus[index])]
            islands = [[0, 1]] if paired and gpus[index] > 1 else []
            self.simulation.nodes[name] = node(
                name, gpus=gpus[index], memory=memory[index], labels=labels, gpu_class=classes, islands=islands
            )
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
        each = data.draw(st.sampled_from(sorted(self.simulation.assigned.values(), key=lambda each: each.record.shard)))
        if self.simulation.alive(each.node):
            self.simulation.report(each.record.replica, state, each.record.rank, reason="so it is")

    @precondition(lambda self: self.simulation.assigned)
    @rule(data=st.data())
    def a_wish_is_removed_by_hand(self, data: st.DataObject) -> None:
        del self.simulation.assigned[data.draw(st.sampled_from(sorted(self.simulation.assigned)))]

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
            placed = len(self.simulation.replicas(name))
            assert placed >= spec.replicas.min or outcome.reasons.get(name), f"{name} has {placed}, and nothing says why"
            # More than wished only while an older spec is being replaced, or while nobody knows what became of a node.
            known = all(self.simulation.alive(each) for each in NODES)
            assert placed <= spec.replicas.min + bool(outcome.outdated.get(name)) or not known

    def checked_step(self) -> Plan:
        simulation = self.simulation
        before = list(simulation.assigned.values())
        replicas = simulation.replicas()
        outcome = simulation.step()

        def enough_after(name: str) -> bool:
            return len(simulation.replicas(name)) >= simulation.models[name].replicas.min

        assert not outcome.failures
        for decision in outcome.decisions:
            if isinstance(decision, Create):
                assert decision.shards[0].record.replica not in replicas
                self.is_whole(decision.shards, epoch=1)
                continue
            sources = decision.sources
            old = sources[0].record
            mine = [each for each in before if each.record.replica == old.replica]
            assert len(sources) == len(mine), "all of it together"
            assert all(each in mine for each in sources)
            if isinstance(decision, Update):
                for source, new in zip(sources, decision.shards, strict=True):
                    for field in ("shard", "replica", "epoch", "gpus", "peers", "version"):
                        assert getattr(new.record, field) == getattr(source.record, field)
            elif isinstance(decision, Move):
                assert not outcome.problems, "under the brake nothing moves"
                assert {(each.record.replica, each.record.model) for each in decision.shards} == {(old.replica, old.model)}
                self.is_whole(decision.shards, epoch=1 + max(each.record.epoch for each in sources))
                assert not {each.node for each in decision.shards} & set(old.tried)
                assert any(map(self.was_in_trouble, sources)) or self.is_torn(sources), "what is fine does not move"
            else:
                wished = simulation.models.get(old.model)
                enough = sum(shards[0].record.model == old.model for shards in replicas.values())
                assert (
                    wished is None
                    or enough > wished.replicas.min
                    or profile_of(wished, old) is None
                    or (self.is_torn(sources) and (enough_after(old.model) or outcome.reasons[old.model]))
                ), "it was needed"
        if not outcome.problems:
            for shards in simulation.replicas().values():
                assert not self.is_torn(shards)
        return outcome

    def is_whole(self, shards: Sequence[Placed], epoch: int) -> None:
        """All shards of a replica, on different live nodes, all alike."""
        names = [each.node for each in shards]
        assert len(set(names)) == len(names)
        assert all(map(self.simulation.alive, names))
        assert [each.record.rank for each in shards] == list(range(len(shards)))
        assert {tuple(each.record.peers) for each in shards} == {tuple(names) if len(shards) > 1 else ()}
        assert {each.record.epoch for each in shards} == {epoch}
        classes = {self.class_of(each.node, gpu) for each in shards for gpu in each.record.gpus}
        assert len(classes) <= 1
        assert len({len(each.record.gpus) for each in shards}) == 1

    def class_of(self, name: str, uuid: str) -> str:
        inventory = self.simulation.nodes[name].inventory
        assert inventory is not None
        return next(gpu.gpu_class for gpu in inventory.gpus if gpu.uuid == uuid)

    @staticmethod
    def is_torn(shards: Sequence[Assigned]) -> bool:
        peers = shards[0].record.peers or [shards[0].node]
        return [(each.record.rank, each.node) for each in shards] != list(enumerate(peers)) or len(
            {each.record.epoch for each in shards}
        ) > 1

    def was_in_trouble(self, source: Assigned) -> bool:
        gone = self.simulation.nodes[source.node].gone_for
        shard = self.simulation.shards.get((source.node, source.record.shard))
        given_up = shard is not None and shard.state in (ShardState.REJECTED, ShardState.FAILED)
        return given_up or (gone is not None and gone >= 60)

    @invariant()
    def no_gpu_twice_and_no_more_memory_than_there_is(self) -> None:
        """A shard's successor of the same replica starts when it has ended, in its room."""
        for name, each in self.simulation.nodes.items():
            assert each.inventory is not None
            held: dict[str, tuple[set[str], int]] = {}
            for (place, _), truth in self.simulation.shards.items():
                if place == name:
                    gpus, memory = held.get(truth.replica, (set[str](), 0))
                    held[truth.replica] = (gpus | set(truth.gpus), max(memory, truth.memory_bytes))
            for (place, _), wish in self.simulation.assigned.items():
                if place == name:
                    gpus, memory = held.get(wish.record.replica, (set[str](), 0))
                    held[wish.record.replica] = (gpus | set(wish.record.gpus), max(memory, wish.record.memory_bytes))
            uses = Counter(gpu for gpus, _ in held.values() for gpu in gpus)
            assert not [gpu for gpu, count in uses.items() if count > 1]
            assert set(uses) <= {gpu.uuid for gpu in each.inventory.gpus}
            assert sum(memory for _, memory in held.values()) <= each.inventory.memory.total_bytes, f"more than {name} has"


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
    moved = {each.sources[0].node for each in outcome.decisions if isinstance(each, Move)}
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
