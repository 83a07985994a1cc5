"""Hardware views on simulated fleets."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType

from llmgw_ctl import hardware_views as views
from llmgw_proto.records.fabric import FabricChange, FabricErrors, FabricLink, FabricMapRecord, FabricMissing, FabricNode
from llmgw_testing import hardware_look
from llmgw_testing import nvml_profiles as machine
from llmgw_testing.nvml_fake import FakeNvml
from llmgw_testing.sysfs_trees import SysfsTree


def shown(part: RenderableType) -> str:
    console = Console(width=220, no_color=True)
    with console.capture() as captured:
        console.print(part)
    return captured.get()


class Fleet:
    """Nodes as the admin API gives them, made by real detection on the fake NVML."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self._monkeypatch, self._folder = monkeypatch, folder
        self.nodes: list[dict[str, Any]] = []

    def add(self, name: str, profile: str, hcas: int = 0, alive: bool = True) -> None:
        folder = self._folder / name
        tree = SysfsTree(folder / "sys")
        for hca in range(hcas):
            tree.hca(f"mlx5_{hca}", f"pci0000:15/0000:15:0{hca}.0/0000:1{hca}:00.0")
        FakeNvml(self._monkeypatch, folder, profile)
        found = hardware_look.look(tree.root)
        inventory = {
            "topology": json.loads(json.dumps(found.topology())),
            "gpus": [gpu.model_dump() for gpu in found.gpu_facts()],
        }
        self.nodes.append({"name": name, "alive": alive, "inventory": inventory})


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Fleet:
    return Fleet(monkeypatch, tmp_path)


def test_gpu_list(fleet: Fleet) -> None:
    fleet.add("n2", machine.h100_mig())
    fleet.add("n1", machine.dgx_h100() + "gpu3.lost = 1\n", hcas=1)
    fleet.nodes.append({"name": "n3", "alive": True, "inventory": None})

    grid = views.gpus_grid(fleet.nodes, {machine.uuid(0): "model-abc12"})

    lines = grid.plain().splitlines()
    assert len(lines) == 1 + 8 + 2
    assert lines[1].split()[:2] == ["n1", "GPU0"]
    assert "model-abc12" in lines[1]
    assert "island 0 of 7" in lines[1]
    assert "mlx5_0" in lines[1]
    assert "quarantined" in lines[4]
    assert "gpu-lost" in lines[4]
    assert "MIG 3g.40gb" in lines[9]
    assert "MIG-aaaaaaaa-0000-0000-0000-000000000000" in lines[9]
    assert views.gpus_grid([]).empty.startswith("No node has GPUs")


def test_gpus_of_a_dead_node_are_gone(fleet: Fleet) -> None:
    fleet.add("n1", machine.rtx3090_pair(), alive=False)
    assert all("gone" in line for line in views.gpus_grid(fleet.nodes).plain().splitlines()[1:])


def test_node_hardware(fleet: Fleet) -> None:
    fleet.add("n1", machine.dgx1_v100(), hcas=2)

    text = shown(views.node_hardware(fleet.nodes[0]))

    assert "V100-32GB" in text
    assert "groups GPU0-3 and GPU4-7" in text
    assert "mlx5_1:1" in text
    assert "no GPUs" in shown(views.node_hardware({"name": "n9", "inventory": None}))


def test_nvlink_of_a_rack(fleet: Fleet) -> None:
    fleet.add("tray00", machine.gb200_tray())
    for tray in range(1, 18):
        fleet.nodes.append({**copy.deepcopy(fleet.nodes[0]), "name": f"tray{tray:02d}"})
    fleet.nodes[4]["inventory"]["topology"]["islands"][0]["imex"] = True

    text = shown(views.nvlink(fleet.nodes))

    assert "5d9a6b1c-0f2e-4a77-9c1d-3b5e7f901234.32766  18     72    GB200-186GB" in text
    assert "missing on tray00" in text
    assert "tray17  4     GB200-186GB  18/18  NVSwitch  GPU0-3" in text


def test_nvlink_of_a_mixed_fleet(fleet: Fleet) -> None:
    fleet.add("hgx", machine.dgx_h100(dead=[7]))
    fleet.add("fm-down", machine.dgx_h100(state=1))
    fleet.add("pcie", machine.a100_pcie_bridged())
    fleet.add("plain", machine.l40s())

    text = shown(views.nvlink(fleet.nodes))

    assert text.startswith("NODE     PROBLEM")
    assert "nvlink-degraded" in text
    assert "18/18 x7, 17/18" in text
    assert "GPU0-1, GPU2-3" in text
    assert "fabric-not-ready" in text
    assert "none" in next(line for line in text.splitlines() if line.startswith("fm-down  8"))
    assert "plain" not in text
    assert shown(views.nvlink(fleet.nodes[3:])).startswith("No GPUs with NVLink")


def fabric_record(**more: Any) -> dict[str, Any]:
    """Two leaves with two hosts each, and a spine."""
    nodes = [
        FabricNode(guid=f"s{at}", kind="switch", name=name, lid=at + 1) for at, name in enumerate(("leaf1", "leaf2", "spine1"))
    ]
    nodes += [FabricNode(guid=f"h{at}", kind="host", name=f"localhost mlx5_{at}", port_guids={1: f"p{at}"}) for at in range(4)]
    links: list[FabricLink] = [(at // 2, at % 2 + 1, 3 + at, 1, "4xNDR") for at in range(4)]
    links += [(leaf, 30 + line, 2, 10 * leaf + line + 1, "4xNDR") for leaf in range(2) for line in range(2)]
    record = FabricMapRecord(subnet="s0", mapper="n1", mapped_at=1000, seconds=0.2, sm_lid=7, nodes=nodes, links=links)
    found: dict[str, Any] = json.loads(record.model_copy(update=more).encode())
    return found


BROKEN: dict[str, Any] = {
    "missing": [FabricMissing(a="s0", a_port=31, b="s2", b_port=2, speed="4xNDR", since=700)],
    "errors": [FabricErrors(guid="s0", port=1, counters={"SymbolErrorCounter": 250})],
    "problems": ["the link leaf2 port 1 - x[2] runs at 1xNDR, others of its kind at 400 Gb/s"],
    "changes": [FabricChange(at=700, kind="link-down", where="s0[31]", text="the link leaf1 port 31 - spine1 port 2 is down")],
}


def test_fabric_list() -> None:
    grid = views.fabrics_grid(
        [fabric_record(), fabric_record(subnet="s9", **BROKEN), fabric_record(subnet="sa", partial=True)], 1065
    )

    whole, broken, partial = grid.plain().splitlines()[1:]
    assert whole.split()[:7] == ["s0", "3", "4", "8", "0", "4xNDR", "ok"]
    assert "1m5s ago" in whole
    assert "degraded" in broken
    assert "x[2]" in broken
    only_missing = views.fabrics_grid([fabric_record(missing=BROKEN["missing"], errors=BROKEN["errors"])], 1065).plain()
    assert only_missing.rstrip().endswith("1 link(s) missing, errors on 1 port(s)")
    assert "partial" in partial
    assert views.fabrics_grid([], 0).empty.startswith("No InfiniBand fabric")


def test_fabric_show() -> None:
    text = shown(views.fabric(fabric_record(**BROKEN), 1060, {"p0": "gpu-a mlx5_0", "p3": "gpu-d mlx5_0"}))

    assert text.startswith(
        "subnet s0: degraded, 3 switches, 4 host ports, 8 links, subnet manager at LID 7; mapped 1m ago by n1"
    )
    assert "! the link leaf2 port 1 - x[2] runs at 1xNDR" in text
    assert "leaf1 port 31" in text
    assert "SymbolErrorCounter 250" in text
    assert text.index("MISSING LINK") < text.index("SWITCH  ")
    leaf = next(line for line in text.splitlines() if line.startswith("leaf1  ") and "spine1" in line)
    # Hosts go by the names of their agents.
    assert "gpu-a mlx5_0, localhost mlx5_1" in leaf
    assert "2 x 4xNDR to spine1" in leaf


def test_healthy_fabric_is_short() -> None:
    text = shown(views.fabric(fabric_record(), 1060))
    assert "MISSING" not in text
    assert "CHANGED" not in text
    assert len(text.splitlines()) == 6


def test_owners_come_from_what_agents_published(fleet: Fleet) -> None:
    fleet.add("n1", machine.l40s(1), hcas=1)
    assert views.owners_of([*fleet.nodes, {"name": "n2", "inventory": None}]) == {"0c42a10300000100": "n1 mlx5_0"}


def test_names_from_the_fabric_cannot_steer_the_terminal() -> None:
    record = fabric_record()
    record["nodes"][0]["name"] = "leaf\x1b[31m[bold]1"
    text = shown(views.fabric(record, 1060))
    assert "\x1b" not in text
    assert "[bold]1" in text
