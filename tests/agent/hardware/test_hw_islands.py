"""Each machine's GPUs, as the real binding reads them from the fake library, and the islands that must follow."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from llmgw_agent.hardware.detect import Hardware
from llmgw_testing import hardware_look
from llmgw_testing import nvml_profiles as machine
from llmgw_testing.nvml_fake import FakeNvml


def look(monkeypatch: pytest.MonkeyPatch, folder: Path, profile: str) -> Hardware:
    FakeNvml(monkeypatch, folder, profile)
    return hardware_look.look(None)


ALL = tuple(range(8))


@dataclass(frozen=True)
class Case:
    profile: str
    gpu_class: str
    islands: list[tuple[int, ...]]
    all_to_all: bool = True
    groups: list[tuple[int, ...]] | None = None
    domain: str | None = None
    problems: tuple[str, ...] = ()
    quarantined: tuple[int, ...] = ()


CASES = {
    "dgx1-v100": Case(machine.dgx1_v100(), "V100-32GB", [ALL], all_to_all=False, groups=[ALL[:4], ALL[4:]]),
    "dgx-a100": Case(machine.dgx_a100(), "A100-40GB", [ALL]),
    "dgx-h100": Case(machine.dgx_h100(), "H100-80GB", [ALL]),
    "dgx-h100 in a guest": Case(machine.dgx_h100(remote=machine.HIDDEN), "H100-80GB", [ALL]),
    "hgx with a dead lane": Case(machine.dgx_h100(dead=[7]), "H100-80GB", [ALL], problems=("nvlink-degraded",)),
    "fabric manager down": Case(machine.dgx_h100(state=1), "H100-80GB", [], problems=("fabric-not-ready",), quarantined=ALL),
    "fabric still training": Case(machine.dgx_h100(state=2), "H100-80GB", [], problems=("fabric-not-ready",), quarantined=ALL),
    "fabric failed": Case(machine.dgx_h100(status=23), "H100-80GB", [], problems=("fabric-failed",), quarantined=ALL),
    "a100 pcie bridged": Case(machine.a100_pcie_bridged(), "A100-80GB", [(0, 1), (2, 3)]),
    "rtx 3090 pair": Case(machine.rtx3090_pair(), "RTX-3090-24GB", [(0, 1)]),
    "rtx 3090 bad seat": Case(machine.rtx3090_pair(dead=[3]), "RTX-3090-24GB", [(0, 1)], problems=("nvlink-degraded",) * 2),
    "rtx 3090 without bridge": Case(machine.rtx3090_pair(dead=range(4)), "RTX-3090-24GB", []),
    "l40s": Case(machine.l40s(), "L40S-48GB", []),
    "gb200 tray": Case(
        machine.gb200_tray(), "GB200-186GB", [(0, 1, 2, 3)], domain="5d9a6b1c-0f2e-4a77-9c1d-3b5e7f901234.32766"
    ),
    "gb200 old driver": Case(
        machine.gb200_tray() + "".join(f"gpu{index}.fabric.old = 1\n" for index in range(4)),
        "GB200-186GB",
        [(0, 1, 2, 3)],
        domain="5d9a6b1c-0f2e-4a77-9c1d-3b5e7f901234.32766",
    ),
    "gb200 without fabric": Case(
        machine.gb200_tray(state=0), "GB200-186GB", [(0, 1, 2, 3)], problems=("fabric-not-registered",) * 4
    ),
    "gb200 unhealthy": Case(machine.gb200_tray(summary=2), "GB200-186GB", [(0, 1, 2, 3)], problems=("fabric-unhealthy",) * 4),
    "gb200 degraded bandwidth": Case(
        machine.gb200_tray(mask="0xa9"), "GB200-186GB", [(0, 1, 2, 3)], problems=("fabric-unhealthy",) * 4
    ),
    "vgpu": Case(machine.vgpu(), "L40S-24Q", []),
    "one gpu lost": Case(machine.lost(), "L40S-48GB", [], problems=("gpu-lost",), quarantined=(3,)),
}


@pytest.mark.parametrize("name", CASES)
def test_machine_is_recognised(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    case = CASES[name]

    hardware = look(monkeypatch, tmp_path, case.profile)

    islands = hardware.nvlink.islands
    assert [island.gpus for island in islands] == case.islands
    assert all(island.all_to_all is case.all_to_all for island in islands)
    assert all(island.domain == case.domain for island in islands)
    groups = [group for island in islands for group in island.groups]
    assert groups == (case.islands if case.groups is None else case.groups)
    assert tuple(problem.code for problem in hardware.problems) == case.problems
    assert {gpu.raw.index for gpu in hardware.gpus if gpu.quarantine} == set(case.quarantined)
    assert hardware.gpus[0].gpu_class == case.gpu_class


def test_mig_instances_stand_for_their_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hardware = look(monkeypatch, tmp_path, machine.h100_mig())

    facts = hardware.gpu_facts()
    # The hole at index 1 is skipped, and the memory is the instance's own.
    assert [(each.uuid[:5], each.gpu_class, each.memory_bytes) for each in facts] == [
        ("MIG-a", "H100-MIG-3g.40gb", 42_949_672_960),
        ("MIG-a", "H100-MIG-2g.20gb", 21_474_836_480),
    ]
    (gpu,) = hardware.topology()["gpus"]
    assert gpu["uuid"] == machine.uuid(0)
    assert [part["uuid"] for part in gpu["mig"]["instances"]] == [each.uuid for each in facts]
    assert hardware.topology()["islands"] == []


def test_mig_change_pending_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hardware = look(monkeypatch, tmp_path, machine.dgx_h100() + "gpu2.migmode = 0,1\n")

    assert [(problem.code, problem.subject) for problem in hardware.problems] == [("mig-change-pending", machine.uuid(2))]
    assert hardware.gpus[2].quarantine is not None


def test_mixed_models_are_never_one_group(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hardware = look(monkeypatch, tmp_path, machine.mixed() + "pair.0.1.topo = 30\npair.0.2.topo = 30\n")

    assert [gpu.gpu_class for gpu in hardware.gpus] == ["RTX-3090-24GB", "RTX-3080-10GB", "RTX-3090-24GB"]
    assert hardware.nvlink.islands == []
    assert hardware.pci_groups() == [[0, 2]]
    assert hardware.nccl_env()["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert any("different GPUs" in note for note in hardware.notes)


def test_l40s_groups_by_numa_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert look(monkeypatch, tmp_path, machine.l40s()).pci_groups() == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_peer_access_is_believed_over_links(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hardware = look(monkeypatch, tmp_path, machine.a100_pcie_bridged() + "pair.2.3.p2p2 = 3\n")

    assert [island.gpus for island in hardware.nvlink.islands] == [(0, 1)]
    assert [problem.code for problem in hardware.problems] == ["nvlink-p2p-disagree"]


def test_guest_that_hides_its_links_is_told_by_peer_access(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    profile = "\n".join(line for line in machine.rtx3090_pair().splitlines() if "link" not in line) + "\n"

    hardware = look(monkeypatch, tmp_path, profile)

    assert [island.gpus for island in hardware.nvlink.islands] == [(0, 1)]


def test_links_that_lead_one_way_only_are_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    profile = machine.dgx1_v100() + "gpu0.link0.state = 0\n"

    hardware = look(monkeypatch, tmp_path, profile)

    codes = [problem.code for problem in hardware.problems]
    assert "nvlink-asymmetric" in codes
    assert "nvlink-degraded" in codes
    # 0-1 had one link only; without it the quad is two pairs, and peer access still says yes, so it stays.
    assert "nvlink-p2p-disagree" in codes


def test_link_to_a_lost_gpu_is_no_switch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hardware = look(monkeypatch, tmp_path, machine.dgx1_v100() + "gpu7.lost = 1\n")

    assert [island.gpus for island in hardware.nvlink.islands] == [(0, 1, 2, 3, 4, 5, 6)]
    assert hardware.nvlink.switch_links == {}
    assert hardware.nvlink.islands[0].groups == ((0, 1, 2, 3), (5, 6))


def test_two_partitions_of_one_switch_are_two_islands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lines = [f"gpu{index}.fabric.clique = {1 if index < 4 else 2}\n" for index in range(8)]
    pairs = [f"pair.{a}.{b}.p2p2 = 5\n" for a in range(4) for b in range(4, 8)]

    hardware = look(monkeypatch, tmp_path, machine.dgx_h100() + "".join(lines + pairs))

    assert [island.gpus for island in hardware.nvlink.islands] == [ALL[:4], ALL[4:]]
    assert hardware.problems == []


def test_sixteen_gpus_can_be_one_island(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lines = [
        line
        for index in range(16)
        for line in machine.card(index, machine.A100, f"00000000:{0x10 + index:02X}:00.0")
        + machine.links(index, 4, [(2, machine.NVSWITCH)] * 6)
    ]

    hardware = look(monkeypatch, tmp_path, machine.text(machine.system(16), lines, machine.peers()))

    assert hardware.nvlink.islands[0].groups == (tuple(range(16)),)
    assert hardware.between(0, 15) == "NV6"
