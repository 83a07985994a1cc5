"""A driver call that never returns costs the helper, a bounded time, and nothing else."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from llmgw_agent.hardware.detect import detect
from llmgw_testing import nvml_profiles as machine
from llmgw_testing.nvml_fake import FakeNvml
from llmgw_testing.sysfs_trees import SysfsTree

#: A loaded machine is slow to start processes; the promise itself is 5 s.
DEADLINE = 4.0


def test_hanging_initialisation_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    FakeNvml(monkeypatch, tmp_path, machine.dgx_h100() + "sys.hang = 1\n")
    SysfsTree(tmp_path / "sys")

    started = time.monotonic()
    hardware = asyncio.run(detect(tmp_path / "sys", DEADLINE))

    assert time.monotonic() - started < DEADLINE + 5
    assert [(problem.code, problem.subject) for problem in hardware.problems] == [("probe-hung", "node")]
    assert "nvmlInit" in hardware.problems[0].text


@pytest.mark.parametrize("line", ["gpu3.hang = 1", "gpu3.hang.links = 1"])
def test_hanging_gpu_leaves_the_others(line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    FakeNvml(monkeypatch, tmp_path, machine.dgx_a100() + line + "\n")
    SysfsTree(tmp_path / "sys")

    started = time.monotonic()
    hardware = asyncio.run(detect(tmp_path / "sys", 2 * DEADLINE))

    assert time.monotonic() - started < 2 * DEADLINE + 5
    assert [problem.code for problem in hardware.problems] == ["probe-hung"]
    assert [island.gpus for island in hardware.nvlink.islands] == [(0, 1, 2, 4, 5, 6, 7)]
    working = [each.uuid for each in hardware.gpu_facts() if each.quarantine is None]
    assert working == [machine.uuid(index) for index in range(8) if index != 3]


def test_hanging_host_probe_leaves_the_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    FakeNvml(monkeypatch, tmp_path, machine.rtx3090_pair())
    module = tmp_path / "stuck_probe.py"
    module.write_text("import time\ntime.sleep(600)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("llmgw_agent.hardware.host_look.look.__defaults__", ("stuck_probe",))

    hardware = asyncio.run(detect(deadline=DEADLINE))

    assert [problem.code for problem in hardware.problems] == ["probe-hung"]
    assert [island.gpus for island in hardware.nvlink.islands] == [(0, 1)]


def test_crashed_probe_is_a_problem_with_its_last_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "broken_probe.py").write_text("raise SystemExit('out of luck')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("llmgw_agent.hardware.nvml_look.look.__defaults__", ("broken_probe",))
    SysfsTree(tmp_path / "sys")

    hardware = asyncio.run(detect(tmp_path / "sys", 60))

    (problem,) = hardware.problems
    assert problem.code == "probe-failed"
    assert "exit code 1: out of luck" in problem.text


def test_host_without_any_gpu_is_calm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FAKE_NVML", raising=False)
    SysfsTree(tmp_path / "sys")

    hardware = asyncio.run(detect(tmp_path / "sys", 60))

    assert hardware.problems == []
    assert "no NVIDIA GPU and no driver" in hardware.notes
    assert hardware.gpu_facts() == []
