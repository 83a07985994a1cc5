"""How long hardware detection takes, what telemetry costs, and how long a fabric map takes.

Run ``python bench/hardware.py``. GPUs are the fake NVML of the tests, the fabric is the real ibsim with the real opensm and
infiniband-diags (Debian packages ibsim-utils, libumad2sim0, infiniband-diags, opensm), so the figures are those of llmgw's own
work and of the tools; a real driver adds its answer times.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from llmgw_agent.hardware.detect import detect
from llmgw_agent.hardware.fabric.mapper import make_map
from llmgw_agent.hardware.fabric.tools import Tools
from llmgw_agent.hardware.raw import Event, Ports, Sample
from llmgw_agent.hardware.telemetry import Settings, Telemetry
from llmgw_testing import nvml_profiles as machine
from llmgw_testing.ibsim_fabric import fat_tree, simulated
from llmgw_testing.nvml_fake import FakeNvml
from llmgw_testing.sysfs_trees import SysfsTree
from llmgw_testing.wait import eventually

_ROUNDS = 5
_WATCHED = 20.0


def host(folder: Path) -> SysfsTree:
    """Eight GPUs, each behind a switch with an adapter, on two NUMA nodes."""
    tree = SysfsTree(folder / "sys")
    tree.numa("0-55", "56-111")
    for index, pci in enumerate(machine.BOX):
        base = f"pci0000:e{index}/0000:e{index}:01.0/0000:0{index}:00.0"
        tree.gpu(f"{base}/0000:a{index}:00.0/{pci[4:].lower()}", index // 4)
        tree.hca(f"mlx5_{index}", f"{base}/0000:a{index}:01.0/0000:b{index}:00.0", index // 4)
    return tree


def line(what: str, value: str, limit: str, good: bool) -> bool:
    print(f"{what:<58} {value:>12}   (limit {limit})   {'ok' if good else 'TOO MUCH'}")
    return good


def detection(tree: SysfsTree) -> bool:
    seconds = []
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        hardware = asyncio.run(detect(tree.root))
        seconds.append(time.perf_counter() - started)
        assert len(hardware.gpus) == len(hardware.rails.rails) == 8, hardware.problems
    middle = statistics.median(seconds)
    return line("full detection of 8 GPUs and 8 HCAs, median", f"{middle:.3f} s", "2 s", middle < 2)


async def telemetry(tree: SysfsTree) -> bool:
    """The helper's processor time and memory, and what the agent spends on its samples."""
    samples = 0

    def count(sample: Sample | Ports | Event) -> None:
        nonlocal samples
        samples += isinstance(sample, Sample)

    loop = Telemetry(lambda report: None, count, Settings(sysfs_root=tree.root))
    task = asyncio.create_task(loop.run())
    await eventually(lambda: samples >= 2, within=60, what="the first samples")
    children = psutil.Process().children()
    helper = next(child for child in children if "llmgw_agent.hardware.sampler" in child.cmdline())
    agent = psutil.Process()
    before = (_cpu(helper), _cpu(agent), time.perf_counter(), samples)
    await asyncio.sleep(_WATCHED)
    spent, own = _cpu(helper) - before[0], _cpu(agent) - before[1]
    elapsed, rate = time.perf_counter() - before[2], (samples - before[3]) / (time.perf_counter() - before[2])
    memory = helper.memory_info().rss / 1e6
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    share = 100 * (spent + own) / elapsed
    print(f"  {rate:.2f} samples/s; helper {100 * spent / elapsed:.2f} %, agent {100 * own / elapsed:.2f} % of a core")
    good = line("telemetry of 8 GPUs and 8 HCAs at one sample per second", f"{share:.2f} %", "1 %", share < 1)
    return line("memory of the telemetry helper", f"{memory:.1f} MB", "30 MB", memory < 30) and good


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def mapping(folder: Path) -> bool:
    good = True
    for hosts, per_leaf, spines in ((8, 2, 2), (32, 8, 4), (128, 16, 8)):
        with simulated(folder / f"fabric{hosts}", fat_tree(hosts, per_leaf, spines, 2)) as fabric:
            record = asyncio.run(make_map("bench", Tools(env=fabric.env)))
        size = len(record.encode())
        what = f"map of {hosts} hosts ({len(record.nodes)} nodes, {len(record.links)} links, {size / 1000:.1f} kB)"
        good &= line(what, f"{record.seconds:.3f} s", "5 s", record.seconds < 5)
    return good


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="llmgw-bench-") as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name)
        tree = host(folder)
        FakeNvml(patch, folder, machine.dgx_h100())
        print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")
        checks: list[Callable[[], bool]] = [
            lambda: detection(tree),
            lambda: asyncio.run(telemetry(tree)),
            lambda: mapping(folder),
        ]
        # All of them, also after a failed one.
        return 0 if sum(not check() for check in checks) == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
