"""Where replicas go, and what is said when they cannot."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llmgw_coordinator.planner import Create, Node
from llmgw_proto.records import ModelSpec, Profile, ShardState
from llmgw_testing.worlds import GIB, SETTINGS, Simulation, model, node, profile


def test_a_wished_replica_is_placed_with_all_that_the_agent_needs() -> None:
    wish = profile(gpus=2, memory="8GiB", args=["-c", "4096"], env={"A": "b"}, capabilities=["chat"])
    spec = model("org/Some.Model", 1, wish, drain_seconds=7, generation=3)
    simulation = Simulation.of([spec], [node("n1", gpus=4)])
    (decision,) = simulation.plan().decisions
    assert isinstance(decision, Create)
    (placed,) = decision.shards
    record = placed.record
    assert placed.node == "n1"
    assert record.replica == "org-some-model-00001"
    assert (record.shard, record.model, record.epoch, record.generation) == ("org-some-model-00001.0", "org/Some.Model", 1, 3)
    assert (record.engine, record.source, record.args, record.env) == ("llamacpp", "/w.gguf", ["-c", "4096"], {"A": "b"})
    assert (record.gpus, record.memory_bytes, record.drain_seconds) == (["n1-g0", "n1-g1"], 8 * GIB, 7)
    assert record.capabilities == ["chat"]


@pytest.mark.parametrize(
    ("spec", "nodes", "places"),
    [
        pytest.param(model("m", 3), [node("a"), node("b"), node("c")], ["a", "b", "c"], id="spread over nodes"),
        pytest.param(model("m", 3), [node("a"), node("b")], ["a", "a", "b"], id="more replicas than nodes"),
        pytest.param(
            model("m", 2, profile(gpus=1)), [node("a", gpus=4), node("b", gpus=8)], ["a", "b"], id="spread before best fit"
        ),
        pytest.param(
            model("m", 1, profile(gpus=1)),
            [node("a", gpus=8), node("b", gpus=2)],
            ["b"],
            id="best fit leaves the large node free",
        ),
        pytest.param(
            model("m", 1, profile(memory="4GiB")), [node("a", memory=64), node("b", memory=8)], ["b"], id="best fit in memory"
        ),
        pytest.param(model("m", 1), [node("a", memory=8), node("b", memory=64)], ["b"], id="unknown memory takes the roomiest"),
        pytest.param(model("m", 1), [node("a", engines=["command"]), node("b")], ["b"], id="the engine must be there"),
        pytest.param(
            model("m", 1, profile(node_selector={"zone": "x"})),
            [node("a"), node("b", labels={"zone": "y"}), node("c", labels={"zone": "x", "more": "1"})],
            ["c"],
            id="labels must match",
        ),
        pytest.param(model("m", 1), [node("a", gone_for=1), node("b")], ["b"], id="not on a node that is away"),
        pytest.param(model("m", 1), [node("a", closed="unreadable"), node("b")], ["b"], id="not on a closed node"),
        pytest.param(model("m", 1), [Node("a", None), node("b")], ["b"], id="not on a node without an inventory"),
        pytest.param(
            model("m", 1, profile(gpus=2)),
            [node("a", gpus=2, quarantined=[1]), node("b", gpus=4)],
            ["b"],
            id="no quarantined GPU",
        ),
        pytest.param(
            model("m", 2, profile(gpus=8), profile(gpus=1)),
            [node("a", gpus=1), node("b", gpus=8)],
            ["a", "b"],
            id="profiles in order",
        ),
        pytest.param(model("m", 0), [node("a")], [], id="none wished"),
    ],
)
def test_where_replicas_go(spec: ModelSpec, nodes: list[Node], places: list[str]) -> None:
    simulation = Simulation.of([spec], nodes)
    simulation.step()
    assert simulation.places(spec.name) == places


def test_many_models_of_unknown_size_are_not_heaped_on_one_node() -> None:
    simulation = Simulation.of([model(f"m{index}") for index in range(6)], [node("a"), node("b"), node("c")])
    simulation.step()
    assert sorted(each.node for each in simulation.assigned.values()) == ["a", "a", "b", "b", "c", "c"]


def test_gpus_of_one_numa_domain_are_taken_together_and_whole_domains_kept() -> None:
    simulation = Simulation.of([model("a", 1, profile(gpus=1)), model("b", 1, profile(gpus=4))], [node("n", gpus=8)])
    simulation.step()
    assert [each.record.gpus for each in simulation.of_model("b")] == [["n-g4", "n-g5", "n-g6", "n-g7"]]


def test_what_a_shard_was_found_to_need_counts_for_its_siblings() -> None:
    simulation = Simulation.of([model("m", 1)], [node("a", memory=10)])
    simulation.step()
    simulation.report("m-00001", ShardState.READY, memory_bytes=6 * GIB)
    simulation.scale("m", 2)
    outcome = simulation.step()
    assert simulation.places("m") == ["a"]
    assert "6 GiB of memory" in outcome.reasons["m"]


def test_a_shard_that_is_left_holds_its_gpus_until_its_record_is_gone() -> None:
    simulation = Simulation.of([model("old", 1, profile(gpus=1))], [node("a", gpus=1)])
    simulation.settle()
    del simulation.models["old"]
    simulation.models["new"] = model("new", 1, profile(gpus=1))
    simulation.step()
    assert simulation.assigned == {}, "the old one is given up, but its GPU is not free yet"
    assert "0 of 1 GPUs free" in simulation.step().reasons["new"]
    simulation.agents()
    simulation.step()
    assert simulation.places("new") == ["a"]


def test_memory_for_the_system_is_not_given_away() -> None:
    spec = model("m", 1, profile(memory="8GiB"))
    simulation = Simulation.of([spec], [node("a", memory=8)], settings=replace(SETTINGS, reserved_bytes=1))
    simulation.step()
    assert simulation.assigned == {}


@pytest.mark.parametrize(
    ("wish", "nodes", "reason"),
    [
        (profile(), [], "needs engine llamacpp; no node has joined; start llmgw-agent on a host"),
        (profile(), [node("a", gone_for=3)], "none of the 1 known nodes is alive"),
        (
            profile("command", command=["x", "{port}"]),
            [node("a", engines=["llamacpp"])],
            "none of the 1 live nodes has engine command",
        ),
        (profile(node_selector={"gpu": "big"}), [node("a")], "no live node with engine llamacpp carries gpu=big; label a node"),
        (
            profile(gpus=4, memory="8GiB"),
            [node("a", gpus=2, memory=4), node("b", gpus=1, memory=64)],
            "needs engine llamacpp, 4 GPUs and 8 GiB of memory; nearest is node a with 2 of 2 GPUs free and 4 GiB of "
            "4 GiB of memory free: 2 GPUs and 4 GiB missing; add a larger node or lower the demand",
        ),
    ],
)
def test_why_a_replica_waits_is_said_with_a_remedy(wish: Profile, nodes: list[Node], reason: str) -> None:
    simulation = Simulation.of([model("m", 1, wish)], nodes)
    outcome = simulation.plan()
    assert reason in outcome.reasons["m"]
    assert outcome.decisions == []


def test_a_full_cluster_names_what_is_missing_and_that_others_could_give_way() -> None:
    simulation = Simulation.of([model("m", 3, profile(gpus=2))], [node("a", gpus=4)])
    reason = simulation.settle().reasons["m"]
    assert reason.startswith(
        "1 of 3 replicas not placed: needs engine llamacpp and 2 GPUs; nearest is node a with 0 of 4 GPUs free"
    )
    assert reason.endswith("2 GPUs missing; scale down or remove another model, or add a node")
