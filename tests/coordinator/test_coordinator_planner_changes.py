"""Scaling, moving, replacing, removing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llmgw_coordinator.planner import Assigned, Create, Delete, Move, Update
from llmgw_coordinator.planner.profiles import assignment_for, profile_of
from llmgw_proto.records import ModelSpec, ReplicaRange, RoutingSpec, ShardState
from llmgw_testing.worlds import Simulation, deletes, model, node, profile, shard_of

THREE = [node("a"), node("b"), node("c")]


def test_what_is_fine_stays() -> None:
    simulation = Simulation.of([model("m", 3)], THREE)
    simulation.settle()
    before = dict(simulation.assigned)
    simulation.nodes["d"] = node("d", memory=512)
    assert simulation.step().decisions == []
    assert simulation.assigned == before


def test_scaling_down_gives_up_what_does_not_serve_first_then_the_newest() -> None:
    simulation = Simulation.of([model("m", 4)], [*THREE, node("d")])
    simulation.settle()
    simulation.report("m-00002", ShardState.STARTING)
    simulation.scale("m", 2)
    assert deletes(simulation.step()) == ["m-00002", "m-00004"]


def test_scaling_to_zero_and_removing_gives_up_all_and_touches_no_other_model() -> None:
    simulation = Simulation.of([model("m", 2), model("n", 2), model("other", 2)], THREE)
    simulation.settle()
    simulation.scale("m", 0)
    del simulation.models["n"]
    outcome = simulation.step()
    assert {each.sources[0].record.model for each in outcome.decisions if isinstance(each, Delete)} == {"m", "n"}
    assert [len(simulation.of_model(name)) for name in ("m", "n", "other")] == [0, 0, 2]


def test_a_model_whose_spec_cannot_be_read_is_left_as_it_is() -> None:
    simulation = Simulation.of([model("m", 2)], THREE)
    simulation.settle()
    del simulation.models["m"]
    simulation.unreadable = frozenset({"m"})
    assert simulation.step().decisions == []


def test_a_model_that_breaks_the_planner_stops_no_other() -> None:
    poison = model("a-poison").model_copy(update={"profiles": None})
    simulation = Simulation.of([poison, model("m", 1)], THREE)
    outcome = simulation.step()
    assert list(outcome.failures) == ["a-poison"]
    assert len(simulation.of_model("m")) == 1


# --- elsewhere -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [ShardState.REJECTED, ShardState.FAILED])
def test_a_replica_that_its_agent_gave_up_on_tries_each_other_node_once(state: ShardState) -> None:
    simulation = Simulation.of([model("m", 1)], THREE)
    simulation.settle()
    seen = []
    for _ in range(3):
        seen += simulation.places("m")
        simulation.report("m-00001", state, reason="the file is missing")
        outcome = simulation.step()
    assert sorted(seen) == ["a", "b", "c"]
    (left,) = simulation.of_model("m")
    assert (left.record.replica, left.record.epoch, sorted([*left.record.tried, left.node])) == ("m-00001", 3, ["a", "b", "c"])
    assert outcome.decisions == []
    assert "the file is missing" in outcome.reasons["m"]
    assert "it cannot go elsewhere: no node of the right kind is left to try (a, b, c)" in outcome.reasons["m"]


def test_a_node_where_a_sibling_failed_is_the_last_choice_for_a_new_replica() -> None:
    simulation = Simulation.of([model("m", 1, profile(gpus=1))], [node("a", gpus=2), node("b", gpus=1)])
    simulation.settle()
    assert simulation.places("m") == ["b"]
    simulation.report("m-00001", ShardState.REJECTED)
    simulation.settle()
    assert simulation.places("m") == ["a"]
    simulation.scale("m", 2)
    simulation.settle()
    assert simulation.places("m") == ["a", "a"], "not on b, where it failed, though that spreads better"
    simulation.scale("m", 3)
    simulation.step()
    assert simulation.places("m") == ["a", "a", "b"], "for want of any other"


def test_a_failed_replica_with_an_attempt_ahead_stays() -> None:
    simulation = Simulation.of([model("m", 1)], THREE)
    simulation.settle()
    simulation.report("m-00001", ShardState.FAILED, next_attempt_at=99.0)
    assert simulation.step().decisions == []


def test_a_changed_spec_may_go_again_to_nodes_where_the_old_one_failed() -> None:
    simulation = Simulation.of([model("m", 1)], [node("a")])
    simulation.settle()
    simulation.report("m-00001", ShardState.REJECTED)
    simulation.step()
    simulation.change("m", source="/better.gguf")
    simulation.settle()
    (new,) = simulation.of_model("m")
    assert (new.node, new.record.source, new.record.tried) == ("a", "/better.gguf", [])


def test_what_an_agent_says_of_an_earlier_epoch_counts_no_more() -> None:
    simulation = Simulation.of([model("m", 1)], THREE)
    simulation.settle()
    (each,) = simulation.of_model("m")
    newer = each.record.model_copy(update={"epoch": 2})
    simulation.assigned[each.node, each.record.shard] = Assigned(each.node, newer, each.created)
    simulation.shards[each.node, each.record.shard] = shard_of(each.node, each.record, ShardState.REJECTED)
    assert simulation.step().decisions == []


def test_a_node_that_is_away_longer_than_the_grace_loses_its_replicas() -> None:
    simulation = Simulation.of([model("m", 2, profile(gpus=1))], [node("a", gpus=1), node("b", gpus=1), node("c", gpus=1)])
    simulation.settle()
    assert simulation.places("m") == ["a", "b"]
    simulation.lose("b", seconds=59)
    assert simulation.step().decisions == []
    simulation.lose("b", seconds=60)
    (move,) = simulation.step().decisions
    assert isinstance(move, Move)
    ((old,), (new,)) = move.sources, move.shards
    assert (old.node, new.node, new.record.epoch, new.record.gpus) == ("b", "c", 2, ["c-g0"])
    assert new.record.replica == old.record.replica


def test_without_another_place_a_lost_replica_keeps_its_wish() -> None:
    simulation = Simulation.of([model("m", 1)], [node("a")])
    simulation.settle()
    simulation.lose("a")
    outcome = simulation.step()
    assert outcome.decisions == []
    assert "node a is away; it cannot go elsewhere" in outcome.reasons["m"]


def test_a_quarantined_gpu_moves_its_replica_only_and_the_same_node_will_do() -> None:
    simulation = Simulation.of([model("m", 2, profile(gpus=2))], [node("a", gpus=6)])
    simulation.settle()
    sick, fine = sorted(simulation.of_model("m"), key=lambda each: each.record.gpus)
    simulation.nodes["a"] = node("a", gpus=6, quarantined=[int(sick.record.gpus[0][-1])])
    (move,) = simulation.step().decisions
    assert isinstance(move, Move)
    ((old,), (new,)) = move.sources, move.shards
    assert (old, new.node, new.record.epoch) == (sick, "a", 2)
    assert set(new.record.gpus).isdisjoint({*sick.record.gpus, *fine.record.gpus})


def test_of_two_wishes_for_one_replica_the_newer_counts() -> None:
    simulation = Simulation.of([model("m", 1)], THREE)
    simulation.settle()
    (old,) = simulation.of_model("m")
    other = "b" if old.node != "b" else "c"
    newer = old.record.model_copy(update={"epoch": 2})
    simulation.assigned[other, newer.shard] = Assigned(other, newer, 99)
    assert simulation.step().decisions == [Delete((old,), "the replica has a newer place")]


# --- the brake -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("total", "lost", "moves"),
    [
        pytest.param(4, [100.0], True, id="one is never too many"),
        pytest.param(4, [100.0, 130.0], False, id="half of them within a minute"),
        pytest.param(4, [100.0, 161.0], True, id="half of them, but not at once"),
        pytest.param(10, [100.0, 101.0, 102.0], True, id="exactly 30 %"),
        pytest.param(10, [100.0, 101.0, 102.0, 103.0], False, id="more than 30 %"),
        pytest.param(3, [62.0, 5.0], False, id="one over the grace and one just gone"),
        pytest.param(2, [360.0, 360.0], False, id="all of them for six minutes"),
    ],
)
def test_the_brake(total: int, lost: list[float], moves: bool) -> None:
    names = [f"n{index}" for index in range(total)]
    simulation = Simulation.of([model("m", total)], [node(name) for name in names])
    simulation.settle()
    for name, seconds in zip(names, lost, strict=False):
        simulation.lose(name, seconds=seconds)
    outcome = simulation.step()
    assert bool(outcome.decisions) is moves
    assert bool(outcome.problems) is not moves
    if not moves:
        assert f"{len(lost)} of {total} nodes vanished" in outcome.problems[0]
        assert "brake_share: 1" in outcome.problems[0]


def test_under_the_brake_no_older_spec_is_replaced() -> None:
    simulation = Simulation.of([model("m", 4)], [node("a"), node("b"), node("c"), node("d")])
    simulation.settle()
    simulation.lose("a", "b")
    simulation.change("m", source="/new.gguf")
    assert simulation.step().decisions == []


def test_nodes_scrapped_long_ago_do_not_hold_the_brake() -> None:
    """A coordinator that has just started cannot tell when they vanished; without replicas they do not matter."""
    live = [node(f"n{index}") for index in range(4)]
    simulation = Simulation.of([model("m", 3)], live)
    simulation.settle()
    for index in range(6):
        simulation.nodes[f"old{index}"] = replace(node(f"old{index}"), gone_for=100.0, witnessed=False)
    simulation.lose("n0", seconds=100)
    outcome = simulation.step()
    assert outcome.problems == []
    assert simulation.places("m") == ["n1", "n2", "n3"]
    # With replicas they count: they may have been there a moment ago.
    simulation.nodes["n1"] = replace(simulation.nodes["n1"], gone_for=100.0, witnessed=False)
    simulation.nodes["n2"] = replace(simulation.nodes["n2"], gone_for=100.0, witnessed=False)
    outcome = simulation.step()
    assert outcome.decisions == []
    assert "3 of 4 nodes vanished" in outcome.problems[0]


def test_under_the_brake_what_the_operator_wishes_is_still_done() -> None:
    simulation = Simulation.of([model("m", 4), model("gone", 1)], [node("a"), node("b"), node("c"), node("d")])
    simulation.settle()
    simulation.lose("a", "b")
    simulation.scale("m", 2)
    del simulation.models["gone"]
    simulation.models["new"] = model("new", 1)
    outcome = simulation.settle()
    assert outcome.problems
    assert [len(simulation.of_model(name)) for name in ("m", "gone", "new")] == [2, 0, 1]


# --- replacing an older spec's replicas ------------------------------------------------------------------------------------


def test_with_room_the_new_replica_comes_first_and_the_old_one_goes_once_it_is_ready() -> None:
    simulation = Simulation.of([model("m", 2, profile(gpus=1))], [node("a", gpus=3)])
    simulation.settle()
    simulation.change("m", source="/new.gguf")
    (first,) = simulation.step().decisions
    assert isinstance(first, Create)
    assert simulation.step().decisions == [], "it is not ready yet, so nothing is given up"
    simulation.agents()
    outcome = simulation.step()
    assert [type(each) for each in outcome.decisions] == [Delete], "no third one at once: the GPUs are taken"
    assert len(simulation.of_model("m")) == 2
    assert simulation.step().decisions == [], "the place that the stopping one leaves is waited for"
    simulation.agents()
    simulation.settle()
    assert [each.record.source for each in simulation.of_model("m")] == ["/new.gguf"] * 2
    assert simulation.plan().outdated == {}


def test_ready_replicas_never_fall_below_the_wish_while_there_is_room() -> None:
    simulation = Simulation.of([model("m", 3)], THREE)
    simulation.settle()
    simulation.change("m", source="/new.gguf")
    while simulation.step().decisions:
        ready = sum(
            (each.node, each.record.shard) in simulation.shards
            and simulation.shards[each.node, each.record.shard].state is ShardState.READY
            for each in simulation.of_model("m")
        )
        assert ready >= 3
        assert len(simulation.of_model("m")) <= 4
        simulation.agents()
    assert {each.record.source for each in simulation.of_model("m")} == {"/new.gguf"}


def test_without_room_one_old_replica_goes_first_and_only_one() -> None:
    simulation = Simulation.of([model("m", 2, profile(gpus=1))], [node("a", gpus=2)])
    simulation.settle()
    simulation.change("m", source="/new.gguf")
    assert len(deletes(simulation.step())) == 1
    assert simulation.step().decisions == [], "the room is not free yet"
    for key in [key for key in simulation.shards if key not in simulation.assigned]:
        del simulation.shards[key]
    assert [type(each) for each in simulation.step().decisions] == [Create]
    assert simulation.step().decisions == [], "the new one is not ready yet"
    simulation.agents()
    simulation.settle()
    assert {each.record.source for each in simulation.of_model("m")} == {"/new.gguf"}


def test_an_old_replica_is_not_given_up_when_that_would_not_make_room() -> None:
    simulation = Simulation.of([model("m", 1, profile(gpus=1))], [node("a", gpus=2)])
    simulation.settle()
    simulation.change("m", profiles=[profile(gpus=4)])
    outcome = simulation.step()
    assert outcome.decisions == []
    assert "replicas of the older spec go on, the new one fits nowhere" in outcome.reasons["m"]


def test_a_new_version_that_fails_leaves_the_old_one_serving() -> None:
    simulation = Simulation.of([model("m", 2)], THREE)
    simulation.settle()
    simulation.change("m", source="/bad.gguf")
    for _ in range(6):
        simulation.step()
        for each in simulation.of_model("m"):
            if each.record.source == "/bad.gguf":
                simulation.report(each.record.replica, ShardState.REJECTED, reason="no such file")
    outcome = simulation.step()
    assert outcome.decisions == []
    assert sorted(each.record.source or "" for each in simulation.of_model("m")) == ["/bad.gguf", "/w.gguf", "/w.gguf"]
    assert "no such file" in outcome.reasons["m"]


def test_old_replicas_that_never_served_go_at_once() -> None:
    simulation = Simulation.of([model("m", 2)], THREE)
    simulation.step()
    simulation.agents(state=ShardState.STARTING)
    simulation.change("m", source="/new.gguf")
    outcome = simulation.step()
    assert [type(each) for each in outcome.decisions] == [Delete, Delete, Create, Create]


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        ({"routing": RoutingSpec(policy="least_loaded")}, "policy", "least_loaded"),
        ({"drain_seconds": 5.0}, "drain_seconds", 5.0),
        ({"profiles": [profile(capabilities=["chat"])]}, "capabilities", ["chat"]),
        ({"profiles": [profile(health_path="/up")]}, "health_path", "/up"),
        ({"replicas": ReplicaRange(min=1, max=4)}, "generation", 1),
    ],
)
def test_what_the_process_does_not_see_is_changed_in_place(change: dict[str, object], field: str, value: object) -> None:
    simulation = Simulation.of([model("m", 1)], THREE)
    simulation.settle()
    simulation.change("m", **change)
    (decision,) = simulation.step().decisions
    assert isinstance(decision, Update)
    (shard,) = decision.shards
    assert getattr(shard.record, field) == value
    assert (shard.record.epoch, shard.record.replica) == (1, "m-00001")
    assert simulation.step().decisions == []


@pytest.mark.parametrize(
    "profiles",
    [
        [profile(args=["-c", "1"])],
        [profile(env={"A": "1"})],
        [profile(memory="1GiB")],
        [profile(gpus=1)],
        [profile(node_selector={"zone": "x"})],
        [profile("command", command=["serve", "{port}"])],
    ],
)
def test_what_the_process_sees_replaces_it(profiles: list[object]) -> None:
    simulation = Simulation.of([model("m", 1)], [node("a", gpus=2, labels={"zone": "x"})])
    simulation.settle()
    simulation.change("m", profiles=profiles)
    simulation.settle()
    (new,) = simulation.of_model("m")
    assert new.record.replica != "m-00001"


def test_adding_a_profile_leaves_replicas_under_another_one_alone() -> None:
    simulation = Simulation.of([model("m", 1)], [node("a", gpus=2)])
    simulation.settle()
    simulation.change("m", profiles=[profile(gpus=2), profile()])
    assert all(isinstance(each, Update) for each in simulation.step().decisions)


def test_the_wished_version_of_an_engine_is_passed_on_and_another_one_replaces_the_replica() -> None:
    old, new = (
        ModelSpec.model_validate({"name": "m", "source": "/w", "profiles": [{"engine": "vllm", "version": version}]})
        for version in ("0.11.1", "0.12.0")
    )
    record = assignment_for(old, old.profiles[0], replica="m-1", epoch=1, gpus=[], tried=[], version=old.profiles[0].version)
    assert record.version == "0.11.1"
    assert profile_of(old, record) == old.profiles[0]
    assert profile_of(new, record) is None
