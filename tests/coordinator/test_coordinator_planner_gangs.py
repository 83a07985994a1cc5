"""Replicas that span nodes: placed, moved, replaced and given up as one."""

from __future__ import annotations

from typing import Any

import pytest

from llmgw_coordinator.planner import Assigned, Create, Delete, Move, Node, Placed, Update
from llmgw_coordinator.planner.gang import GangPicker
from llmgw_coordinator.planner.room import Room
from llmgw_proto.records import EngineInfo, FabricMapRecord, FabricNode, Profile, ShardRole, ShardState
from llmgw_testing.worlds import SETTINGS, Simulation, deletes, model, node, profile

PAIR = profile("vllm", nodes=2, gpus=8)


def big(name: str, **facts: Any) -> Node:
    """A node with 8 GPUs on NVSwitch, and vLLM."""
    fields: dict[str, Any] = {"gpus": 8, "gpu_class": "H100-80GB", "islands": [range(8)], "engines": ["vllm"]}
    return node(name, **(fields | facts))


def shards(simulation: Simulation, name: str = "m") -> list[Assigned]:
    """Of the only replica, by rank."""
    (found,) = simulation.replicas(name).values()
    return found


def where(simulation: Simulation, name: str = "m") -> list[str]:
    return [each.node for each in shards(simulation, name)]


def serving(*names: str, replicas: int = 1, wish: Profile = PAIR) -> Simulation:
    simulation = Simulation.of([model("m", replicas, wish)], [big(name) for name in names])
    simulation.settle()
    return simulation


def tear(simulation: Simulation, which: int, /, **change: Any) -> None:
    """Changes the wish of the shard of this rank as no leader does; without a change it is removed."""
    each = shards(simulation)[which]
    key = (each.node, each.record.shard)
    if change:
        simulation.assigned[key] = Assigned(each.node, each.record.model_copy(update=change), each.created)
    else:
        del simulation.assigned[key]


def test_all_shards_are_placed_at_once_with_ranks_roles_and_peers() -> None:
    simulation = Simulation.of([model("m", 1, PAIR)], [big("a"), big("b"), big("c")])
    (create,) = simulation.step().decisions
    assert isinstance(create, Create)
    head, worker = create.shards
    assert (head.node, worker.node) == ("a", "b")
    assert (head.record.shard, worker.record.shard) == ("m-00001.0", "m-00001.1")
    assert (head.record.role, worker.record.role) == (ShardRole.HEAD, ShardRole.WORKER)
    for rank, each in enumerate(create.shards):
        record = each.record
        assert (record.replica, record.epoch, record.rank, record.peers) == ("m-00001", 1, rank, ["a", "b"])
        assert record.gpus == [f"{each.node}-g{index}" for index in range(8)]


def test_a_replica_on_one_node_has_no_peers() -> None:
    simulation = Simulation.of([model("m", 1, profile("vllm", gpus=8))], [big("a")])
    simulation.step()
    (only,) = shards(simulation)
    assert (only.record.rank, only.record.role, only.record.peers) == (0, ShardRole.HEAD, [])


def test_all_or_nothing() -> None:
    simulation = Simulation.of([model("m", 2, PAIR), model("n", 1, profile("vllm", gpus=4))], [big("a"), big("b"), big("c")])
    outcome = simulation.step()
    assert len(simulation.of_model("m")) == 2
    assert outcome.reasons["m"].startswith(
        "1 of 2 replicas not placed: needs engine vllm and 8 GPUs on each of 2 nodes; room is on c only; of the others nearest "
        "is node a with 0 of 8 GPUs free: 8 GPUs missing"
    )
    assert simulation.places("n") == ["c"], "what does not help the pair is left to others"


# --- which nodes -----------------------------------------------------------------------------------------------------------


def rdma(layer: str, *guids: str, rails: int = 1, others: int = 0) -> dict[str, Any]:
    ports = [
        {"hca": f"mlx5_{index}", "port": 1, "link_layer": layer, "rail": True, "guid": guids[index] if guids else None}
        for index in range(len(guids) or rails)
    ]
    return {"rdma_ports": [*ports, *[{"hca": "mlx5_9", "port": 1, "link_layer": "Ethernet", "rail": False}] * others]}


def ip(*addresses: str) -> dict[str, Any]:
    return {"interfaces": {"management": "eth0"}, "netdevs": [{"name": "eth0", "addresses": [*addresses, "nonsense"]}]}


def two_leaves(subnet: str, *ports: tuple[str, int]) -> FabricMapRecord:
    """Switches 0 and 1, joined; each (port GUID, switch) is a host's adapter."""
    switches = [FabricNode(guid=f"{subnet}-leaf{index}", kind="switch") for index in range(2)]
    hosts = [FabricNode(guid=f"node of {guid}", kind="host", port_guids={1: guid}) for guid, _ in ports]
    links = [(0, 40, 1, 40, "4xNDR"), *((2 + index, 1, leaf, index, "4xNDR") for index, (_, leaf) in enumerate(ports))]
    return FabricMapRecord(subnet=subnet, mapper="a", mapped_at=0.0, nodes=[*switches, *hosts], links=links)


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        pytest.param(
            [big("a"), big("b", gpu_class="A100-80GB"), big("c"), big("d", gpu_class="A100-80GB")], ["a", "c"], id="one class"
        ),
        pytest.param(
            [big("a", version="0.11"), big("b", version="0.12"), big("c", version="0.12")], ["b", "c"], id="one version"
        ),
        pytest.param(
            [big("a", topology=rdma("InfiniBand")), big("b", topology=rdma("Ethernet")), big("c", topology=rdma("Ethernet"))],
            ["b", "c"],
            id="one link layer",
        ),
        pytest.param(
            [
                big("a", topology=rdma("InfiniBand", rails=8)),
                big("b", topology=rdma("InfiniBand", rails=4)),
                big("c", topology=rdma("InfiniBand", rails=8)),
            ],
            ["a", "c"],
            id="as many rails",
        ),
        pytest.param(
            [big("a", topology=ip("10.0.0.1/24")), big("b", topology=ip("10.0.1.2/24")), big("c", topology=ip("10.0.0.3/24"))],
            ["a", "c"],
            id="the same IP network",
        ),
        pytest.param(
            [
                big("a", topology=ip("10.0.0.1/24")),
                big("b", topology=ip("10.0.1.2/24")),
                big("c", topology=ip("10.0.0.3/24", "fe80::3/64")),
            ],
            ["a", "c"],
            id="link-local addresses are everywhere",
        ),
        pytest.param(
            [big("a", topology=ip("10.0.0.1/24")), big("b", topology=ip("10.0.1.2/24"))], ["a", "b"], id="or else another one"
        ),
        pytest.param(
            [
                big("a", topology=rdma("Ethernet", rails=2, others=1)),
                big("b", topology=rdma("Ethernet", rails=3)),
                big("c", topology=rdma("Ethernet", rails=2)),
            ],
            ["a", "c"],
            id="other RDMA ports do not count",
        ),
        pytest.param(
            [big("a", topology=rdma("Ethernet", rails=8)), big("b", topology=rdma("Ethernet", rails=4))],
            ["a", "b"],
            id="or else with fewer rails",
        ),
    ],
)
def test_nodes_that_are_alike_are_preferred(nodes: list[Node], expected: list[str]) -> None:
    simulation = Simulation.of([model("m", 1, PAIR)], nodes)
    simulation.step()
    assert where(simulation) == expected


def test_one_leaf_is_preferred_and_another_subnet_is_out_of_the_question() -> None:
    guids = {"a": ("1a", 0), "b": ("1b", 1), "c": ("1c", 0), "x": ("2a", 0)}
    nodes = [big(name, topology=rdma("InfiniBand", f"00:{guid}")) for name, (guid, _) in guids.items()]
    maps = [
        two_leaves("s1", *((f"00{guid}", leaf) for name, (guid, leaf) in guids.items() if name != "x")),
        two_leaves("s2", ("002a", 0)),
    ]
    simulation = Simulation.of([model("m", 2, PAIR)], nodes, fabrics=maps)
    outcome = simulation.step()
    assert where(simulation) == ["a", "c"], "both are on the first leaf"
    assert outcome.reasons["m"].endswith(
        "2 nodes have room (b, x), but no 2 of them are joined by RDMA with GPUs of one class and one version "
        "(b: InfiniBand s1, x: InfiniBand s2); look after the fabric, see llmgwctl fabric list"
    )


def test_an_engine_without_rdma_takes_any_network() -> None:
    nodes = [node("a", topology=rdma("InfiniBand")), node("b", topology=rdma("Ethernet"))]
    simulation = Simulation.of([model("m", 1, profile(nodes=2))], nodes)
    simulation.step()
    assert where(simulation) == ["a", "b"]


@pytest.mark.parametrize(
    ("wish", "nodes", "reason"),
    [
        (
            PAIR,
            [big("a"), big("b", gpu_class="A100-80GB")],
            "2 nodes have room (a, b), but no 2 of them have GPUs of one class (a: H100-80GB, b: A100-80GB); set gpu_class",
        ),
        (
            PAIR,
            [big("a", version="0.11.2"), big("b", version="0.12.0")],
            "2 nodes have room (a, b), but no 2 of them run one version of vllm (a: 0.11.2, b: 0.12.0); "
            "set the profile's version, or give the agents one version",
        ),
        (PAIR, [big("a")], "of its kind there is only 1 node (a); add nodes or lower the profile's nodes"),
        (profile("vllm", nodes=3, gpus=8), [big("a"), big("b")], "of its kind there are only 2 nodes (a, b)"),
        (
            profile("vllm", nodes=2, gpus=8, memory="128GiB"),
            [big("a"), big("b")],
            "needs engine vllm, 8 GPUs and 128 GiB of memory on each of 2 nodes; no node has room; of the others nearest is "
            "node a with 8 of 8 GPUs free and 64 GiB of 64 GiB of memory free: 64 GiB missing; add a larger node",
        ),
    ],
)
def test_why_it_waits_is_said(wish: Profile, nodes: list[Node], reason: str) -> None:
    simulation = Simulation.of([model("m", 1, wish)], nodes)
    outcome = simulation.step()
    assert outcome.decisions == []
    assert reason in outcome.reasons["m"]


def test_replicas_spread_over_nodes() -> None:
    simulation = Simulation.of([model("m", 2, profile("vllm", nodes=2, gpus=4))], [big(name) for name in "abcd"])
    simulation.step()
    assert simulation.places("m") == ["a", "b", "c", "d"]


def test_the_worst_node_decides_between_kinds() -> None:
    simulation = Simulation.of([model("m", 1, profile("vllm", nodes=2, gpus=4))], [big("a"), big("b")])
    simulation.settle()
    simulation.nodes |= {each.name: each for each in (big("c"), *(big(name, gpu_class="A100-80GB") for name in "de"))}
    simulation.scale("m", 2)
    simulation.settle()
    assert simulation.places("m") == ["a", "b", "d", "e"], "not c with a or b, which have one already"


def test_a_node_where_it_failed_is_the_last_choice_however_near_it_is() -> None:
    simulation = serving("x", "y")
    for rank in (0, 1):
        tear(simulation, rank, tried=["a"])
    rails = {"a": 8, "b": 8, "c": 4}
    simulation.nodes |= {name: big(name, topology=rdma("Ethernet", rails=count)) for name, count in rails.items()}
    simulation.scale("m", 2)
    simulation.step()
    assert simulation.places("m") == ["b", "c", "x", "y"]


# --- moving ----------------------------------------------------------------------------------------------------------------


def moved(simulation: Simulation) -> Move:
    (move,) = simulation.step().decisions
    assert isinstance(move, Move)
    assert len({each.record.epoch for each in move.shards}) == 1
    return move


def test_a_node_that_is_lost_moves_all_and_the_others_keep_their_ranks_and_gpus() -> None:
    simulation = serving("a", "b", "c", "d")
    simulation.lose("a", seconds=59)
    assert simulation.step().decisions == []
    simulation.lose("a", seconds=60)
    move = moved(simulation)
    assert [each.node for each in move.sources] == ["a", "b"]
    assert [(each.node, each.record.rank, each.record.epoch) for each in move.shards] == [("c", 0, 2), ("b", 1, 2)]
    assert move.shards[1].record.gpus == move.sources[1].record.gpus
    assert all(each.record.peers == ["c", "b"] for each in move.shards)


@pytest.mark.parametrize("state", [ShardState.REJECTED, ShardState.FAILED])
def test_a_worker_that_was_given_up_moves_all_and_its_node_is_not_tried_again(state: ShardState) -> None:
    simulation = serving("a", "b", "c")
    simulation.report("m-00001", ShardState.FAILED, reason="rank 1 is gone")
    simulation.report("m-00001", state, 1, reason="the disk is full")
    move = moved(simulation)
    assert [each.node for each in move.shards] == ["a", "c"], "the head's failure is only the worker's"
    assert all(each.record.tried == ["b"] for each in move.shards)
    assert move.why == "given up on node b: the disk is full"
    simulation.agents()
    simulation.report("m-00001", ShardState.REJECTED, 1, reason="the disk is full")
    outcome = simulation.step()
    assert outcome.decisions == []
    assert (
        "given up on node c: the disk is full; it cannot go elsewhere: of its kind there is only 1 node (a)"
        in (outcome.reasons["m"])
    )


def test_what_a_replica_holds_is_not_given_away_when_planning_its_move_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = serving("a", "b")
    simulation.lose("b", seconds=60)
    simulation.models["z"] = model("z", 1, profile("vllm", gpus=8))
    monkeypatch.setattr(GangPicker, "pick", lambda _: 1 // 0)
    outcome = simulation.step()
    assert list(outcome.failures) == ["m"]
    assert outcome.decisions == [], "node a is not free"


def test_a_head_with_an_attempt_ahead_keeps_all_in_place() -> None:
    simulation = serving("a", "b", "c")
    simulation.report("m-00001", ShardState.FAILED, next_attempt_at=99.0)
    assert simulation.step().decisions == []


def test_a_sick_gpu_moves_all_of_it() -> None:
    simulation = serving("a", "b", "c")
    simulation.nodes["b"] = big("b", quarantined=[3])
    move = moved(simulation)
    assert [each.node for each in move.shards] == ["a", "c"]


def test_a_sick_gpu_moves_it_also_before_it_serves() -> None:
    simulation = serving("a", "b", "c")
    simulation.report("m-00001", ShardState.STARTING)
    simulation.nodes["b"] = big("b", quarantined=[3])
    assert [each.node for each in moved(simulation).shards] == ["a", "c"]


def test_it_stays_where_the_weights_are() -> None:
    simulation = serving("c", "d")
    simulation.nodes |= {name: big(name) for name in "ab"}
    simulation.lose("c", seconds=100)
    assert [each.node for each in moved(simulation).shards] == ["a", "d"]


def test_what_it_leaves_is_not_free_yet_and_what_it_keeps_counts_once() -> None:
    wish = profile("vllm", nodes=2, gpus=8, memory="40GiB")
    simulation = Simulation.of([model("m", 1, wish)], [big("a", labels={"on": "a"}), big("b"), big("c")])
    simulation.settle()
    simulation.models["y"] = model("y", 1, profile("vllm", memory="20GiB", node_selector={"on": "a"}))
    simulation.models["z"] = model("z", 1, profile("vllm", gpus=8))
    simulation.report("m-00001", ShardState.REJECTED, 1)
    outcome = simulation.step()
    assert where(simulation) == ["a", "c"]
    assert simulation.places("y") == ["a"]
    assert simulation.places("z") == [], "b is left but not empty"
    assert "0 of 8 GPUs free" in outcome.reasons["z"]


def test_gpus_of_others_on_its_nodes_are_left_alone() -> None:
    simulation = Simulation.of(
        [model("a", 1, profile("vllm", gpus=4)), model("m", 1, profile("vllm", nodes=2, gpus=4))], [big("a"), big("b")]
    )
    simulation.settle()
    simulation.nodes["c"] = big("c")
    (other,), mine = simulation.of_model("a"), shards(simulation)
    simulation.lose(next(each.node for each in mine if each.node != other.node), seconds=100)
    move = moved(simulation)
    stays = next(each for each in move.shards if each.node == other.node)
    assert set(stays.record.gpus).isdisjoint(other.record.gpus)


def test_under_the_brake_nothing_moves() -> None:
    simulation = serving("a", "b", "c", "d")
    simulation.lose("a", "c")
    outcome = simulation.step()
    assert outcome.decisions == []
    assert "nothing is moved while too many nodes are away" in outcome.reasons["m"]


def test_without_another_place_it_stays_as_it_is() -> None:
    simulation = serving("a", "b")
    simulation.lose("b")
    outcome = simulation.step()
    assert outcome.decisions == []
    assert "node b is away; it cannot go elsewhere: of its kind there is only 1 node (a)" in outcome.reasons["m"]


# --- what does not belong together ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rank", "change", "epoch"),
    [
        (0, {}, 2),
        (1, {}, 2),
        (1, {"epoch": 4}, 5),
        (0, {"peers": ["a", "x"]}, 2),
        (1, {"args": ["--odd"]}, 2),
        (1, {"rank": 0}, 2),
    ],
)
def test_a_partial_set_is_repaired_by_a_new_epoch_where_it_is(rank: int, change: dict[str, Any], epoch: int) -> None:
    simulation = serving("a", "b")
    tear(simulation, rank, **change)
    outcome = simulation.step()
    assert outcome.reasons == {}
    assert [(each.node, each.record.rank, each.record.epoch) for each in shards(simulation)] == [
        ("a", 0, epoch),
        ("b", 1, epoch),
    ]
    assert all(each.record.peers == ["a", "b"] for each in shards(simulation))
    simulation.agents()
    assert simulation.step().decisions == []


def test_parts_are_put_together_again_also_where_a_sibling_failed() -> None:
    simulation = serving("a", "b", replicas=2, wish=profile("vllm", nodes=2, gpus=4))
    simulation.report("m-00002", ShardState.REJECTED, 1)
    simulation.assigned = {key: each for key, each in simulation.assigned.items() if key != ("b", "m-00001.1")}
    simulation.step()
    assert [(each.node, each.record.epoch) for each in simulation.replicas("m")["m-00001"]] == [("a", 2), ("b", 2)]


def test_parts_without_room_for_the_rest_are_given_up() -> None:
    simulation = serving("a", "b")
    tear(simulation, 1)
    simulation.models["n"] = model("n", 1, profile("vllm", gpus=8))
    del simulation.nodes["b"]
    outcome = simulation.step()
    assert deletes(outcome) == ["m-00001"]
    assert "of its kind there is only 1 node (a)" in outcome.reasons["m"]


def test_what_cannot_be_read_is_not_taken_for_missing() -> None:
    simulation = serving("a", "b")
    tear(simulation, 1)
    simulation.nodes["b"] = big("b", closed="assignments/b/m-00001.1: not JSON")
    assert simulation.step().decisions == []


def test_leftovers_of_an_older_epoch_are_removed() -> None:
    simulation = serving("a", "b")
    old = shards(simulation)[1]
    simulation.lose("b")
    simulation.nodes["c"] = big("c")
    simulation.settle()
    simulation.nodes["b"] = big("b")
    simulation.assigned["b", old.record.shard] = old
    assert simulation.step().decisions == [Delete((old,), "the replica has a newer place")]


# --- as one ----------------------------------------------------------------------------------------------------------------


def test_scaling_down_and_removing_take_whole_replicas() -> None:
    simulation = serving("a", "b", "c", "d", replicas=2)
    simulation.report("m-00001", ShardState.STARTING, 1)
    simulation.scale("m", 1)
    gone, _ = simulation.step().decisions
    assert isinstance(gone, Delete)
    assert [each.record.shard for each in gone.sources] == ["m-00001.0", "m-00001.1"], "it does not serve without its worker"
    del simulation.models["m"]
    (gone,) = simulation.step().decisions
    assert isinstance(gone, Delete)
    assert [each.record.shard for each in gone.sources] == ["m-00002.0", "m-00002.1"]


def test_what_needs_no_restart_is_changed_on_all_shards_at_once() -> None:
    simulation = serving("a", "b")
    simulation.change("m", drain_seconds=5.0)
    (update,) = simulation.step().decisions
    assert isinstance(update, Update)
    assert [(each.record.drain_seconds, each.record.epoch) for each in update.shards] == [(5.0, 1)] * 2


def test_a_new_spec_takes_the_old_ones_room_when_there_is_no_other() -> None:
    simulation = serving("a", "b", "c")
    simulation.change("m", source="/new.gguf")
    assert deletes(simulation.step()) == ["m-00001"]
    assert simulation.step().decisions == [], "the room is not free yet"
    simulation.agents()
    simulation.settle()
    assert [(each.node, each.record.source) for each in shards(simulation)] == [("a", "/new.gguf"), ("b", "/new.gguf")]


def test_with_room_the_new_spec_comes_first() -> None:
    simulation = serving("a", "b", "c", "d")
    simulation.change("m", source="/new.gguf")
    (first,) = simulation.step().decisions
    assert isinstance(first, Create)
    assert [each.node for each in first.shards] == ["c", "d"]
    simulation.agents()
    simulation.settle()
    assert {each.record.source for each in shards(simulation)} == {"/new.gguf"}


@pytest.mark.parametrize("wish", [profile("vllm", gpus=8), profile("vllm", nodes=3, gpus=8), profile("vllm", nodes=2, gpus=4)])
def test_another_shape_replaces_it(wish: Profile) -> None:
    simulation = serving("a", "b", "c")
    simulation.change("m", profiles=[wish])
    simulation.settle()
    assert [len(each.record.gpus) for each in shards(simulation)] == [wish.gpus] * wish.nodes


# --- versions --------------------------------------------------------------------------------------------------------------


def overrides(**fields: Any) -> Profile:
    return Profile.model_validate({"engine": "vllm", "version": "0.12.0", **fields})


CANARY = {"version": "0.13.0", "node_selector": {"ring": "canary"}}
OLD_CARDS = {"version": "0.9.0", "gpu_class": "V100-32GB"}


def test_the_first_override_that_matches_the_node_gives_the_version() -> None:
    wish = overrides(gpus=8, versions=[CANARY, OLD_CARDS])
    nodes = [big("a"), big("b", gpu_class="V100-32GB"), big("c", labels={"ring": "canary"}, gpu_class="V100-32GB")]
    simulation = Simulation.of([model("m", 3, wish)], nodes)
    simulation.settle()
    assert {each.node: each.record.version for each in simulation.of_model("m")} == {"a": "0.12.0", "b": "0.9.0", "c": "0.13.0"}
    assert simulation.step().decisions == []


def test_overrides_count_without_gpus_and_for_the_class_that_is_used() -> None:
    wish = overrides(gpus=2, gpu_class="H100-80GB", versions=[OLD_CARDS])
    mixed = big("a", gpu_class=["H100-80GB"] * 4 + ["V100-32GB"] * 4, islands=[range(4), range(4, 8)])
    simulation = Simulation.of([model("m", 1, wish), model("n", 1, overrides(versions=[OLD_CARDS]))], [mixed])
    simulation.settle()
    assert [each.record.version for each in simulation.of_model("m")] == ["0.12.0"]
    assert [each.record.version for each in simulation.of_model("n")] == ["0.9.0"], "without GPUs: a node that has such"


def test_a_changed_override_replaces_what_it_concerns_only() -> None:
    simulation = Simulation.of([model("m", 2, overrides(gpus=8))], [big("a"), big("b", labels={"ring": "canary"})])
    simulation.settle()
    simulation.change("m", profiles=[overrides(gpus=8, versions=[CANARY])])
    before = {each.record.replica for each in simulation.of_model("m") if each.node == "a"}
    simulation.settle()
    assert {each.node: each.record.version for each in simulation.of_model("m")} == {"a": "0.12.0", "b": "0.13.0"}
    assert {each.record.replica for each in simulation.of_model("m") if each.node == "a"} == before


def test_all_shards_get_one_version() -> None:
    canary = {"labels": {"ring": "canary"}}
    wish = overrides(nodes=2, gpus=8, versions=[CANARY])
    simulation = Simulation.of([model("m", 1, wish)], [big("a", **canary), big("b"), big("c", **canary)])
    simulation.settle()
    assert [(each.node, each.record.version) for each in shards(simulation)] == [("a", "0.13.0"), ("c", "0.13.0")]
    simulation = Simulation.of([model("m", 1, wish)], [big("a", **canary), big("b")])
    assert "no 2 of them run one version of vllm (a: 0.13.0, b: 0.12.0)" in simulation.step().reasons["m"]


def test_the_agents_version_is_written_down_and_followed_when_all_nodes_have_another_one() -> None:
    simulation = Simulation.of([model("m", 1, PAIR)], [big(name, version="0.11.2") for name in "abc"])
    simulation.settle()
    assert [each.record.version for each in shards(simulation)] == ["0.11.2", "0.11.2"]
    simulation.nodes["a"] = big("a", version="0.12.0")
    assert simulation.step().decisions == [], "half of it is no reason to replace what runs"
    simulation.nodes["b"] = big("b", version="0.13.0")
    outcome = simulation.step()
    assert (outcome.decisions, outcome.outdated) == ([], {}), "nor is what they do not agree in"
    simulation.nodes |= {name: big(name, version="0.12.0") for name in "bc"}
    simulation.settle()
    assert [each.record.version for each in shards(simulation)] == ["0.12.0", "0.12.0"]


def test_agents_that_cannot_tell_a_version_now_are_no_reason_to_replace_what_runs() -> None:
    simulation = Simulation.of([model("m", 1, PAIR)], [big(name, version="0.11.2") for name in "abcd"])
    simulation.settle()
    for unknown in (dict[str, Any](version=""), dict[str, Any](engines=[])):
        simulation.nodes |= {name: big(name, **unknown) for name in where(simulation)}
        outcome = simulation.step()
        assert (outcome.decisions, outcome.outdated) == ([], {})


def test_a_plan_for_placed_shards_is_a_plain_value() -> None:
    simulation = serving("a", "b")
    again = Simulation.of([model("m", 1, PAIR)], [big("a"), big("b")])
    (create,) = again.step().decisions
    assert isinstance(create, Create)
    assert create.shards == tuple(Placed(each.node, each.record) for each in shards(simulation))


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ([("0.11.2", False), ("0.12.0", True), ("0.13.0", False)], "0.12.0"),
        ([("0.11.2", False), ("0.12.0", False)], "0.12.0"),
        ([], ""),
    ],
)
def test_of_several_versions_on_a_node_the_usual_one_counts(listed: list[tuple[str, bool]], expected: str) -> None:
    where = big("a")
    assert where.inventory is not None
    engines = [EngineInfo(name="vllm", version=version, default=default) for version, default in listed]
    engines.append(EngineInfo(name="sglang", version="9", default=True))
    inventory = where.inventory.model_copy(update={"engines": engines})
    assert Room(Node("a", inventory), SETTINGS).version_of("vllm") == expected
