"""The ``detect`` subcommand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from llmgw_agent.hardware.detect import detect_main
from llmgw_testing import nvml_profiles as machine
from llmgw_testing.nvml_fake import FakeNvml
from llmgw_testing.sysfs_trees import SysfsTree, from_umockdev

FIXTURES = Path(__file__).parents[2] / "fixtures" / "hardware"


def as_json(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    assert detect_main(["-o", "json", "--timeout", "60", *argv]) == 0
    facts: dict[str, Any] = json.loads(capsys.readouterr().out)
    return facts


def test_captured_host(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """One H100 and one ConnectX-7 behind the same bridge, no driver installed."""
    from_umockdev((FIXTURES / "sysfs" / "node.umockdev").read_text(), tmp_path)
    SysfsTree(tmp_path).write("devices/system/node/node0", cpulist="0-63", distance="10 20")

    facts = as_json(capsys, "--sysfs-root", str(tmp_path))

    (port,) = facts["rdma_ports"]
    assert {key: port[key] for key in ("hca", "port", "link_layer", "state", "rate", "netdev", "numa")} == {
        "hca": "mlx5_0",
        "port": 1,
        "link_layer": "InfiniBand",
        "state": "ACTIVE",
        "rate": 400,
        "netdev": "ibp34s0",
        "numa": 0,
    }
    assert facts["gpu_nics"] == {"0000:21:00.0": ["mlx5_0"]}
    assert facts["gpu_nic_distance"] == {"0000:21:00.0": {"mlx5_0": "PIX"}}
    assert facts["nccl_env"]["NCCL_IB_HCA"] == "=mlx5_0:1"
    # The card is on the bus; what is missing is the driver.
    assert [problem["code"] for problem in facts["problems"]] == ["no-nvml-library"]


def test_copy_whose_links_have_become_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """As a checkout or an archive without links leaves it."""
    from_umockdev((FIXTURES / "sysfs" / "node.umockdev").read_text(), tmp_path)
    whole = as_json(capsys, "--sysfs-root", str(tmp_path))
    for link in [path for path in tmp_path.rglob("*") if path.is_symlink()]:
        target = link.readlink()
        link.unlink()
        link.write_text(str(target))

    flat = as_json(capsys, "--sysfs-root", str(tmp_path))

    for field in ("rdma_ports", "gpu_nics", "nccl_env", "hcas", "netdevs", "problems"):
        assert flat[field] == whole[field]
    assert flat["rdma_ports"][0]["netdev"] == "ibp34s0"


def test_captured_software_rdma(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Attributes of a real rxe device, as its kernel showed them."""
    tree = SysfsTree(tmp_path)
    for line in (FIXTURES / "sysfs" / "sysfs-rxe0.txt").read_text().splitlines():
        name, _, value = line.partition(": ")
        tree.write("devices/virtual/infiniband/rxe0", **{name.removeprefix("/sys/class/infiniband/rxe0/"): value})
    tree.link("class/infiniband/rxe0", "devices/virtual/infiniband/rxe0")

    facts = as_json(capsys, "--sysfs-root", str(tmp_path))

    (port,) = facts["rdma_ports"]
    assert (port["hca"], port["state"], port["rate"], port["netdev"], port["software"]) == ("rxe0", "ACTIVE", 2.5, "eth0", True)
    assert (port["lid"], port["rail"]) == (None, False)
    assert facts["problems"] == []


def test_json_has_the_promised_fields(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    FakeNvml(monkeypatch, tmp_path, machine.gb200_tray())
    SysfsTree(tmp_path / "sys")

    facts = as_json(capsys, "--sysfs-root", str(tmp_path / "sys"))

    assert {"uuid", "class", "pci", "numa", "mig", "quarantine"} <= facts["gpus"][0].keys()
    assert {"uuids", "all_to_all", "domain"} <= facts["islands"][0].keys()
    assert facts["tp_groups"] == [[machine.uuid(index) for index in range(4)]]
    assert facts["gpu_nics"] == {machine.uuid(index): [] for index in range(4)}
    assert facts["problems"] == []
    assert isinstance(facts["nccl_env"], dict)


def test_table_shows_problems_first(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    FakeNvml(monkeypatch, tmp_path, machine.dgx1_v100() + "gpu6.lost = 1\n")
    SysfsTree(tmp_path / "sys").hca("mlx5_0", "pci0000:15/0000:15:01.0/0000:16:00.0")

    assert detect_main(["--timeout", "60", "--sysfs-root", str(tmp_path / "sys"), "--path", str(tmp_path)]) == 0

    shown = capsys.readouterr().out
    assert shown.startswith("PROBLEM")
    assert shown.index("gpu-lost") < shown.index("NVIDIA driver")
    assert "NV2" in shown
    assert "island 0: GPU0-5,7 (meshed, not all to all); groups GPU0-3 and GPU4,7" in shown
    assert "mlx5_0:1" in shown
    assert f"disk {tmp_path}" in shown


def test_host_without_gpu_is_calm(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    SysfsTree(tmp_path / "sys")

    assert detect_main(["--timeout", "60", "--sysfs-root", str(tmp_path / "sys")]) == 0

    shown = capsys.readouterr().out
    assert "no GPUs" in shown
    assert "PROBLEM" not in shown


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--sysfs-root", "/does/not/exist"], "/does/not/exist: no such folder"),
        (["--timeout", "0"], "must be more than 0"),
        (["-o", "yaml"], "invalid choice"),
    ],
)
def test_wrong_usage(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        detect_main(argv)
    assert stop.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("output", ["json", "table"])
def test_a_reader_that_has_had_enough_is_no_error_to_tell_of(output: str) -> None:
    read, write = os.pipe()
    os.close(read)
    argv = [sys.executable, "-m", "llmgw_agent", "detect", "-o", output]
    try:
        done = subprocess.run(argv, stdout=write, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (1, "")
