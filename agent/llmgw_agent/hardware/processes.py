"""Processes on GPUs that nobody here started: they take memory that placement counts on. Pure, but for names from /proc."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from llmgw_agent.hardware.problems import Code, Problem
from llmgw_agent.hardware.raw import Process


@dataclass(frozen=True)
class ForeignProcess:
    """``memory`` in bytes, None when the driver does not tell; ``name`` is empty when the process is in another namespace."""

    gpu: str
    pid: int
    name: str
    memory: int | None


def name_of(pid: int, proc: Path = Path("/proc")) -> str:
    """The program's name, empty when there is no such process here (a container sees the host's numbers)."""
    try:
        return (proc / str(pid) / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def foreign(
    gpu: str, processes: Iterable[Process], owned: Callable[[int], bool], proc: Path = Path("/proc")
) -> list[ForeignProcess]:
    """Those that ``owned`` does not know; ``owned`` answers for the pids of the agent's engines and their children."""
    return [ForeignProcess(gpu, each.pid, name_of(each.pid, proc), each.memory) for each in processes if not owned(each.pid)]


def problems(found: Iterable[ForeignProcess]) -> list[Problem]:
    """One problem per GPU that names its foreign processes."""
    by_gpu: dict[str, list[ForeignProcess]] = {}
    for each in found:
        by_gpu.setdefault(each.gpu, []).append(each)
    return [
        Problem(
            Code.FOREIGN_PROCESS,
            gpu,
            f"used by processes that llmgw did not start: {', '.join(in_words(each) for each in group)}; stop them, or keep "
            "the GPU out of llmgw",
        )
        for gpu, group in by_gpu.items()
    ]


def in_words(each: ForeignProcess) -> str:
    """``python3 (pid 7, 10 GiB)``"""
    # Whole GiB: what is published shall not change with every allocation.
    memory = "" if each.memory is None else f", {round(each.memory / 2**30)} GiB"
    return f"{each.name or 'unknown'} (pid {each.pid}{memory})"
