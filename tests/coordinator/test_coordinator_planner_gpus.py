"""Which GPUs of a node a replica gets."""

from __future__ import annotations

from typing import Any

import pytest

from llmgw_coordinator.planner import Node
from llmgw_coordinator.planner.gpus import kinds_of
from llmgw_testing.worlds import Simulation, model, node, profile

PAIRS = [[0, 1], [2, 3]]
DGX1: dict[str, Any] = {"islands": [range(8)], "groups": [[0, 2, 4, 6], [1, 3, 5, 7]]}


def chosen(count: int, where: Node, taken: int = 0, **fields: Any) -> list[int] | None:
    """Indices of the GPUs of a replica that comes after ``taken`` replicas with one GPU each; None: it is not placed."""
    simulation = Simulation.of([model("a", taken, profile(gpus=1)), model("m", 1, profile(gpus=count, **fields))], [where])
    simulation.step()
    assert len(simulation.of_model("a")) == taken
    found = simulation.of_model("m")
    return [int(uuid.rpartition("g")[2]) for uuid in found[0].record.gpus] if found else None


@pytest.mark.parametrize(
    ("count", "where", "taken", "expected"),
    [
        pytest.param(2, node("n", gpus=4, islands=PAIRS), 1, [2, 3], id="in one island"),
        pytest.param(1, node("n", gpus=4, islands=PAIRS), 1, [1], id="one GPU keeps whole islands free"),
        pytest.param(1, node("n", gpus=5, islands=PAIRS), 0, [4], id="one GPU takes one outside of islands first"),
        pytest.param(4, node("n", gpus=4, islands=PAIRS), 0, [0, 1, 2, 3], id="over islands when none is that large"),
        pytest.param(2, node("n", gpus=4, islands=PAIRS), 2, [2, 3], id="singles fill one island"),
        pytest.param(2, node("n", gpus=3, islands=[[0, 1, 2]]), 2, None, id="an island that is taken is waited for"),
        pytest.param(2, node("n", gpus=8, **DGX1), 0, [0, 2], id="fully joined GPUs of a larger island"),
        pytest.param(4, node("n", gpus=8, **DGX1), 1, [1, 3, 5, 7], id="the group that is free"),
        pytest.param(1, node("n", gpus=8, **DGX1), 1, [2], id="one GPU stays in the group that is broken already"),
        pytest.param(5, node("n", gpus=8, **DGX1), 0, [0, 1, 2, 3, 4], id="more than a group: the island"),
        pytest.param(2, node("n", gpus=3, gpu_class=["A", "B", "A"]), 0, [0, 2], id="of one class"),
        pytest.param(3, node("n", gpus=3, gpu_class=["A", "B", "A"]), 0, None, id="never of two classes"),
        pytest.param(2, node("n", gpus=2, gpu_class="H100-MIG-3g.40gb"), 0, None, id="parts of a GPU serve alone"),
        pytest.param(1, node("n", gpus=2, gpu_class="H100-MIG-3g.40gb"), 0, [0], id="as one they do"),
        pytest.param(
            2, node("n", gpus=3, quarantined=[0], islands=[[0, 1], [1, 2]]), 0, [1, 2], id="not with a quarantined one"
        ),
    ],
)
def test_which_gpus_a_replica_gets(count: int, where: Node, taken: int, expected: list[int] | None) -> None:
    assert chosen(count, where, taken) == expected


@pytest.mark.parametrize("wanted", ["A100-80GB", "a100-80gb"])
def test_the_class_can_be_chosen(wanted: str) -> None:
    mixed = node("n", gpus=4, gpu_class=["H100-80GB", "A100-80GB"] * 2)
    assert chosen(2, mixed, gpu_class=wanted) == [1, 3]
    simulation = Simulation.of([model("m", 1, profile(gpus=1, gpu_class=wanted))], [node("a", gpus=8), mixed])
    simulation.step()
    assert simulation.places("m") == ["n"]
    assert simulation.step().decisions == []


def test_nodes_with_nvlink_come_first_for_several_gpus() -> None:
    simulation = Simulation.of([model("m", 1, profile(gpus=2))], [node("a", gpus=2), node("b", gpus=8, islands=[range(8)])])
    simulation.step()
    assert simulation.places("m") == ["b"]


@pytest.mark.parametrize(
    ("count", "where", "taken", "reason"),
    [
        (
            2,
            node("n", gpus=4, islands=PAIRS),
            3,
            "nearest is node n with 1 of 4 GPUs free: 1 GPU missing; scale down",
        ),
        (
            3,
            node("n", gpus=3, gpu_class=["A", "B", "A"]),
            0,
            "nearest is node n with 3 of 3 GPUs free, but at most 2 of one class, which all GPUs of a replica have to be: "
            "1 GPU missing; add a larger node",
        ),
        (
            2,
            node("n", gpus=2, gpu_class="H100-MIG-3g.40gb"),
            0,
            "with 2 of 2 GPUs free, but at most 1 together: parts of a GPU serve alone: 1 GPU missing; add a larger node",
        ),
    ],
)
def test_why_gpus_are_not_enough(count: int, where: Node, taken: int, reason: str) -> None:
    simulation = Simulation.of([model("a", taken, profile(gpus=1)), model("m", 1, profile(gpus=count))], [where])
    assert reason in simulation.settle().reasons["m"]


def test_a_class_that_nobody_has_is_named_with_those_that_there_are() -> None:
    nodes = [node("a", gpus=1, gpu_class="H100-80GB"), node("b", gpus=1, gpu_class="L40S-48GB")]
    simulation = Simulation.of([model("m", 1, profile(gpus=1, gpu_class="B200-192GB"))], nodes)
    reason = simulation.step().reasons["m"]
    assert reason.endswith(
        "needs engine llamacpp and 1 GPU of class B200-192GB; no live node of the right kind has GPUs of class B200-192GB, "
        "only H100-80GB, L40S-48GB; change gpu_class or add a node"
    )


def test_islands_that_are_partly_taken_are_named() -> None:
    simulation = Simulation.of(
        [model("a", 4, profile(gpus=3)), model("m", 1, profile(gpus=2))],
        [node("n", gpus=8, islands=[[0, 1, 2, 3], [4, 5, 6, 7]])],
    )
    reason = simulation.settle().reasons["m"]
    assert "2 of 8 GPUs free, but at most 1 in one NVLink island, which a replica does not leave: 1 GPU missing" in reason


@pytest.mark.parametrize(
    "topology",
    [{"islands": "nonsense"}, {"islands": [1, {"uuids": 7}, {"uuids": [None]}]}, {"islands": None, "tp_groups": {"a": 1}}],
)
def test_a_description_that_cannot_be_read_joins_nothing(topology: dict[str, Any]) -> None:
    inventory = node("n", gpus=2, topology=topology).inventory
    assert inventory is not None
    (kind,) = kinds_of(inventory)
    assert (len(kind.uuids), kind.islands, kind.groups) == (2, (), ())
