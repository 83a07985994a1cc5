"""PCI distances, NUMA nodes and CPU lists."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_agent.hardware.numa import NumaNode, cpu_list, cpus, node_of
from llmgw_agent.hardware.pci import distance, gigatransfers, read_one
from llmgw_agent.hardware.sysfs import Tree, natural
from llmgw_testing.sysfs_trees import SysfsTree

FIXTURES = Path(__file__).parents[2] / "fixtures" / "hardware"


@pytest.mark.parametrize(
    ("one", "other", "numa", "nodes", "word"),
    [
        ("pci0000:20/20:00/21:00/22:00/23:00", "pci0000:20/20:00/21:00/22:01/24:00", (0, 0), 2, "PIX"),
        ("pci0000:20/20:00/21:00", "pci0000:20/20:00/22:00", (None, None), 2, "PIX"),
        ("pci0000:20/20:00/21:00/22:00/23:00", "pci0000:20/20:00/21:00/22:01/24:00/25:00/26:00", (0, 0), 2, "PXB"),
        ("pci0000:20/20:00/21:00", "pci0000:20/20:01/22:00", (0, 0), 2, "PHB"),
        ("pci0000:20/20:00/21:00", "pci0000:30/30:01/31:00", (0, 0), 2, "NODE"),
        ("pci0000:20/20:00/21:00", "pci0000:80/80:01/81:00", (0, 1), 2, "SYS"),
        ("pci0000:20/20:00/21:00", "pci0000:80/80:01/81:00", (None, 1), 2, "UNKNOWN"),
        ("pci0000:20/20:00/21:00", "pci0000:80/80:01/81:00", (None, None), 1, "NODE"),
    ],
)
def test_distance(one: str, other: str, numa: tuple[int | None, int | None], nodes: int, word: str) -> None:
    assert distance(one.split("/"), other.split("/"), numa, nodes) == word
    assert distance(other.split("/"), one.split("/"), (numa[1], numa[0]), nodes) == word


def test_distances_on_a_captured_bus(tmp_path: Path) -> None:
    """A real kernel's tree: two expander buses, each with a switch and two cards, one on either NUMA node."""
    tree = SysfsTree(tmp_path)
    places = {}
    for line in (FIXTURES / "sysfs" / "pci.txt").read_text().splitlines():
        words = line.split()
        facts = dict(word.split("=", 1) for word in words[2:] if "=" in word)
        place = words[1].removeprefix("/sys/")
        tree.write(
            place, **{"class": facts["class"], "vendor": facts["vendor"], "device": facts["device"], "numa_node": facts["numa"]}
        )
        places[words[0]] = place

    def word(one: str, other: str) -> str:
        a, b = (read_one(Tree(tmp_path), places[address]) for address in (one, other))
        assert a is not None
        assert b is not None
        return distance(a.path, b.path, (a.numa, b.numa), 2)

    assert word("0000:24:00.0", "0000:23:00.0") == "PIX"
    assert word("0000:84:00.0", "0000:83:00.0") == "PIX"
    assert word("0000:24:00.0", "0000:83:00.0") == "SYS"
    assert word("0000:24:00.0", "0000:00:02.0") == "UNKNOWN"
    assert word("0000:00:02.0", "0000:00:03.0") == "PHB"


@pytest.mark.parametrize(
    ("said", "near", "expected"),
    [
        (1, "", 1),
        (None, "0-3", 0),
        (None, "8-9", 1),
        # All CPUs are near: nothing is known.
        (None, "0-15", None),
        (None, "", None),
        # The memory of a coherent GPU is a node without CPUs: never the answer.
        (2, "8-11", 1),
        (2, "", None),
    ],
)
def test_node_of_a_device(said: int | None, near: str, expected: int | None) -> None:
    nodes = [NumaNode(0, "0-7"), NumaNode(1, "8-15"), NumaNode(2, "")]
    assert node_of(nodes, said, cpus(near)) == expected


def test_unknown_node_on_a_single_node_host_is_that_node() -> None:
    assert node_of([NumaNode(0, "0-63")], None, frozenset()) == 0


@given(st.frozensets(st.integers(0, 300)))
def test_cpu_lists_round_trip(numbers: frozenset[int]) -> None:
    assert cpus(cpu_list(numbers)) == numbers


def test_cpu_list_is_written_as_the_kernel_does() -> None:
    assert cpu_list(frozenset({0, 1, 2, 8, 10, 11})) == "0-2,8,10-11"


@pytest.mark.parametrize(
    ("text", "expected"), [("32.0 GT/s PCIe", 32.0), ("2.5 GT/s", 2.5), ("Unknown", None), ("", None), (None, None)]
)
def test_link_speed(text: str | None, expected: float | None) -> None:
    assert gigatransfers(text) == expected


def test_natural_order() -> None:
    assert sorted(["mlx5_10", "mlx5_9", "ib0", "mlx5_bond_0"], key=natural) == ["ib0", "mlx5_9", "mlx5_10", "mlx5_bond_0"]


def test_copy_of_a_whole_host_is_found_below_sys(tmp_path: Path) -> None:
    SysfsTree(tmp_path / "sys").numa("0-3")
    assert Tree(tmp_path).text("devices/system/node/node0/cpulist") == "0-3"


def test_link_out_of_the_tree_is_not_followed(tmp_path: Path) -> None:
    tree = SysfsTree(tmp_path / "sys")
    (tree.root / "class/net/evil").symlink_to("/proc/self")
    assert Tree(tree.root).real("class/net", "evil") is None
