"""Named conditions of node and GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmgw_agent.hardware.conditions import Findings, judge, memory_conditions
from llmgw_agent.hardware.detect import Hardware
from llmgw_agent.hardware.nvlink_fabric import mask_conditions
from llmgw_agent.hardware.raw import NvmlFacts, System
from llmgw_agent.hardware.topology import as_json
from llmgw_testing import hardware_look
from llmgw_testing import nvml_profiles as machine
from llmgw_testing.nvml_fake import FakeNvml
from llmgw_testing.sysfs_trees import SysfsTree


def look(monkeypatch: pytest.MonkeyPatch, folder: Path, profile: str, previous: Hardware | None = None) -> Hardware:
    FakeNvml(monkeypatch, folder, profile)
    return hardware_look.look(None, previous=previous)


@pytest.mark.parametrize(
    ("code", "named", "words"),
    [
        (4, "no-permission", "as root"),
        (9, "no-driver", "modprobe nvidia"),
        (18, "driver-mismatch", "reboot the node"),
        (999, "nvml-failed", "dmesg"),
        (17, "nvml-failed", "code 17"),
    ],
)
def test_initialisation_failure_is_a_condition_of_the_node(
    code: int, named: str, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    facts = NvmlFacts(system=System(error=code), complete=True)
    findings = Findings()
    judge(facts, findings, module_version=None, container=None, pci_gpus=0)
    found = look(monkeypatch, tmp_path, machine.failing(code))

    (problem,) = findings.problems
    assert (problem.code, problem.subject) == (named, "node")
    assert words in problem.text
    assert found.gpu_facts() == []
    assert len(found.problems) == 1


def test_mismatch_names_the_loaded_module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    FakeNvml(monkeypatch, tmp_path, machine.failing(18))
    SysfsTree(tmp_path / "sys").write("module/nvidia", version="570.124.04")

    (problem,) = hardware_look.look(tmp_path / "sys").problems

    assert problem.code == "driver-mismatch"
    assert "570.124.04" in problem.text


def test_unknown_error_in_a_container_means_lost_devices() -> None:
    findings = Findings()

    judge(NvmlFacts(system=System(error=999)), findings, module_version=None, container="docker", pci_gpus=8)

    assert findings.problems[0].code == "container-lost-devices"


def test_no_library_is_a_problem_only_with_a_gpu_on_the_bus() -> None:
    without, having = Findings(), Findings()

    judge(NvmlFacts(system=System(error=12)), without, module_version=None, container=None, pci_gpus=0)
    judge(NvmlFacts(system=System(error=12)), having, module_version=None, container=None, pci_gpus=2)

    assert (without.problems, without.notes) == ([], ["no NVIDIA GPU and no driver"])
    assert [problem.code for problem in having.problems] == ["no-nvml-library"]


def test_lost_gpu_keeps_its_identity(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = look(monkeypatch, tmp_path, machine.l40s())
    (tmp_path / "again").mkdir()
    after = look(monkeypatch, tmp_path / "again", machine.lost(3), previous=before)

    facts = after.gpu_facts()
    assert len(facts) == 8
    ((uuid, reason),) = [(each.uuid, each.quarantine) for each in facts if each.quarantine]
    assert uuid == machine.uuid(3)
    assert "gpu-lost" in reason
    assert after.problems[0].subject == machine.uuid(3)


def test_lost_gpu_is_found_on_the_bus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tree = SysfsTree(tmp_path / "sys")
    for index, bus in enumerate(("0e", "0f", "1f", "20", "87", "88", "98", "99")):
        tree.gpu(f"pci0000:{index:02x}/0000:{index:02x}:01.0/0000:{bus}:00.0")
    FakeNvml(monkeypatch, tmp_path, machine.lost(3))

    hardware = hardware_look.look(tmp_path / "sys")

    assert [(problem.code, problem.subject) for problem in hardware.problems] == [("gpu-lost", "0000:20:00.0")]


def test_gpu_that_the_driver_dropped_at_start_is_found_on_the_bus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tree = SysfsTree(tmp_path / "sys")
    for bus in ("01", "21"):
        tree.gpu(f"pci0000:00/0000:00:{bus}.0/0000:{bus}:00.0")
    tree.gpu("pci0000:00/0000:00:03.0/0000:31:00.0")
    passed_on = tree.gpu("pci0000:00/0000:00:04.0/0000:41:00.0")
    (tree.root / "bus/pci/drivers/vfio-pci").mkdir(parents=True)
    tree.link(f"{passed_on}/driver", "bus/pci/drivers/vfio-pci")
    FakeNvml(monkeypatch, tmp_path, machine.rtx3090_pair())

    hardware = hardware_look.look(tmp_path / "sys")

    assert [(problem.code, problem.subject) for problem in hardware.problems] == [("gpu-fell-off-bus", "0000:31:00.0")]


@pytest.mark.parametrize(
    ("code", "named"), [(4, "no-permission"), (8, "gpu-unreadable"), (11, "gpu-unreadable"), (16, "gpu-reset-required")]
)
def test_gpu_that_cannot_be_opened_leaves_the_others(
    code: int, named: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hardware = look(monkeypatch, tmp_path, machine.l40s() + f"gpu5.error = !{code}\n")

    assert [problem.code for problem in hardware.problems] == [named]
    assert len(hardware.gpu_facts()) == 7


def test_unsupported_calls_are_absent_values(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hardware = look(monkeypatch, tmp_path, machine.vgpu() + "gpu0.util = !4\ngpu0.serial = !999\n")

    assert hardware.problems == []
    (gpu,) = hardware.gpus
    assert (gpu.raw.power_limit, gpu.raw.temperature, gpu.raw.utilization, gpu.raw.serial) == (None, None, None, None)
    assert gpu.raw.virtualization == 2
    assert any("nvmlDeviceGetSerial answered 999" in note for note in hardware.notes)


def test_gpu_lost_in_the_middle_keeps_what_was_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hardware = look(monkeypatch, tmp_path, machine.l40s() + "gpu2.power = !15\n")

    assert [(problem.code, problem.subject) for problem in hardware.problems] == [("gpu-lost", machine.uuid(2))]
    assert hardware.gpus[2].gpu_class == "L40S-48GB"


def test_full_facts_of_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    extra = "gpu1.proc0 = 4242,1073741824\ngpu1.proc1 = 4343\ngpu1.remapped = 1,0,0,0\ngpu1.reasons = 0x60\ngpu1.util = 97,40\n"

    hardware = look(monkeypatch, tmp_path, machine.dgx_h100() + extra)

    gpu = as_json(hardware)["gpus"][1]
    assert gpu["uuid"] == machine.uuid(1)
    assert gpu["class"] == "H100-80GB"
    assert gpu["pci"] == "0000:43:00.0"
    assert gpu["compute_capability"] == "9.0"
    assert gpu["mig"] is None
    assert gpu["power"] == {"limit": 700.0, "default": 700.0, "min": 200.0, "max": 700.0}
    assert [(each["pid"], each["memory_bytes"]) for each in gpu["processes"]] == [(4242, 1 << 30), (4343, None)]
    assert gpu["remapped_rows"] == {"corrected": 1, "uncorrected": 0, "pending": 0, "failed": 0}
    assert gpu["throttle"] == ["thermal (software)", "thermal (hardware)"]
    assert gpu["utilization"] == 97
    assert gpu["nvlink"]["active"] == 18
    assert gpu["fabric"]["state"] == "completed"
    assert as_json(hardware)["driver"] == {"version": "580.95.05", "nvml": "13.580.95.05", "cuda": "13.0"}
    # What changes from second to second is not in the record that goes to etcd.
    assert "temperature" not in hardware.topology()["gpus"][1]


def test_rack_facts_are_read_as_bytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hardware = look(monkeypatch, tmp_path, machine.gb200_tray())

    platform = hardware.gpus[0].raw.platform
    assert platform is not None
    assert (platform.chassis, platform.slot, platform.tray) == ("1820124180012", 12, 7)


@pytest.mark.parametrize(
    ("remapped", "retired", "codes"),
    [
        (None, None, []),
        ([3, 1, 0, 0], 0, []),
        ([0, 1, 1, 0], None, ["row-remap-pending"]),
        ([0, 1, 1, 1], None, ["row-remap-failed"]),
        (None, 1, ["retired-pages-pending"]),
    ],
)
def test_memory_conditions(remapped: list[int] | None, retired: int | None, codes: list[str]) -> None:
    assert [str(code) for code, _ in memory_conditions(remapped, retired)] == codes


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (0, []),
        (0xAA, []),
        (0xA9, ["reduced bandwidth"]),
        (0x155, ["reduced bandwidth", "route recovery in progress", "unhealthy route", "access timeout recovery"]),
        (0x4AA, ["no partition"]),
        (0x1AA | 2 << 14, ["fabric manager disconnected"]),
    ],
)
def test_fabric_health_mask(mask: int, words: list[str]) -> None:
    assert mask_conditions(mask) == words
