"""Processes on GPUs that llmgw did not start."""

from __future__ import annotations

from pathlib import Path

from llmgw_agent.hardware.processes import foreign, problems
from llmgw_agent.hardware.raw import Process


def test_foreign_processes_are_named(tmp_path: Path) -> None:
    (tmp_path / "100").mkdir()
    (tmp_path / "100" / "comm").write_text("python3\n")

    found = foreign("GPU-1", [Process(100, 3 << 30), Process(7, 1), Process(4711)], lambda pid: pid == 7, tmp_path)

    (problem,) = problems([*found, *foreign("GPU-2", [Process(7)], lambda pid: pid == 7, tmp_path)])
    assert (problem.code, problem.subject) == ("foreign-process", "GPU-1")
    assert "python3 (pid 100, 3 GiB), unknown (pid 4711)" in problem.text
