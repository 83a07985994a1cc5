"""The live loop with the real sampler on the fake NVML."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from llmgw_agent.hardware.detect import detect
from llmgw_agent.hardware.health import Report
from llmgw_agent.hardware.helper import environment
from llmgw_agent.hardware.metrics import HardwareMetrics
from llmgw_agent.hardware.power import PowerCapRangeError, PowerCapRefusedError, PowerCapUnsupportedError, PowerLimits
from llmgw_agent.hardware.rates import RateMeter
from llmgw_agent.hardware.raw import Event, Ports, PortSample, Sample
from llmgw_agent.hardware.telemetry import SAMPLER, Settings, Telemetry, power_limits
from llmgw_base.clock import Clock, SystemClock
from llmgw_testing import nvml_profiles as machine
from llmgw_testing.nvml_fake import FakeNvml
from llmgw_testing.sysfs_trees import SysfsTree

PATIENCE = 60.0
LIMITS = PowerLimits(200, 700, 700)


class Watch:
    """What the loop has said."""

    def __init__(self) -> None:
        self.reports: list[Report] = []
        self.lines: list[Sample | Ports | Event] = []
        self._news = asyncio.Event()

    def publish(self, report: Report) -> None:
        self.reports.append(report)
        self._news.set()

    def sample(self, line: Sample | Ports | Event) -> None:
        self.lines.append(line)
        self._news.set()

    async def until(self, true: Callable[[], bool]) -> None:
        """Waits for a condition, looking at each news."""
        async with asyncio.timeout(PATIENCE):
            while not true():
                self._news.clear()
                await self._news.wait()

    def samples(self) -> list[Sample]:
        return [line for line in self.lines if isinstance(line, Sample)]

    def codes(self) -> list[str]:
        return [problem.code for problem in self.reports[-1].problems] if self.reports else []


class JumpingClock(SystemClock):
    """The real clock, but for the hours that a test skips."""

    def __init__(self) -> None:
        self.skipped = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.skipped


@asynccontextmanager
async def running(
    tree: Path, stall: float = 30.0, module: str = SAMPLER, clock: Clock | None = None
) -> AsyncIterator[tuple[Telemetry, Watch]]:
    watch = Watch()
    settings = Settings(every=0.05, rarely=3, stall=stall, sysfs_root=tree)
    telemetry = Telemetry(watch.publish, watch.sample, settings, clock, module=module)
    task = asyncio.create_task(telemetry.run())
    try:
        yield telemetry, watch
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@pytest.fixture
def tree(tmp_path: Path) -> SysfsTree:
    tree = SysfsTree(tmp_path / "sys")
    tree.hca("mlx5_0", "pci0000:15/0000:15:01.0/0000:16:00.0")
    return tree


def test_xid_quarantines_its_gpu_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tree: SysfsTree) -> None:
    async def scenario() -> None:
        nvml = FakeNvml(monkeypatch, tmp_path, machine.dgx_h100() + "gpu2.xid = 1:31\n")
        hardware = await detect(tree.root, 60)
        async with running(tree.root) as (telemetry, watch):
            await watch.until(lambda: len(watch.samples()) > 3)
            # What happened before the agent listened is not told again.
            assert watch.reports == []
            nvml.add("gpu2.xid = 2:79")
            await watch.until(lambda: bool(watch.reports))

            assert list(telemetry.report.quarantine) == [machine.uuid(2)]
            found = hardware.with_health(telemetry.report)
            assert [gpu.uuid for gpu in found.gpu_facts() if gpu.quarantine] == [machine.uuid(2)]
            assert "XID 79" in found.problems[0].text
            assert hardware.problems == []

            telemetry.lift(machine.uuid(2))
            assert telemetry.report.quarantine == {}

    asyncio.run(scenario())


def test_last_xid_of_a_gpu_that_is_gone_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tree: SysfsTree) -> None:
    async def scenario() -> None:
        nvml = FakeNvml(monkeypatch, tmp_path, machine.dgx_h100())
        async with running(tree.root) as (_, watch):
            await watch.until(lambda: bool(watch.samples()))
            nvml.add("gpu2.lost = 1", "gpu2.xid = 1:79")
            await watch.until(lambda: {"gpu-lost", "xid"} <= set(watch.codes()))

    asyncio.run(scenario())


def test_gpu_lost_while_running_leaves_the_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tree: SysfsTree) -> None:
    async def scenario() -> None:
        nvml = FakeNvml(monkeypatch, tmp_path, machine.dgx_h100())
        async with running(tree.root) as (telemetry, watch):
            await watch.until(lambda: bool(watch.samples()))
            nvml.add("gpu6.lost = 1")
            await watch.until(lambda: watch.codes() == ["gpu-lost"])

            assert list(telemetry.report.quarantine) == [machine.uuid(6)]
            count = len(watch.samples())
            await watch.until(lambda: len(watch.samples()) > count + 2)
            assert [bool(gpu.error) for gpu in watch.samples()[-1].gpus] == [index == 6 for index in range(8)]

    asyncio.run(scenario())


def test_port_that_goes_down_is_no_rail_any_more(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tree: SysfsTree) -> None:
    async def scenario() -> None:
        FakeNvml(monkeypatch, tmp_path, machine.l40s(1))
        hardware = await detect(tree.root, 60)
        assert hardware.nccl_env()["NCCL_IB_HCA"] == "=mlx5_0:1"
        async with running(tree.root) as (telemetry, watch):
            await watch.until(lambda: any(isinstance(line, Ports) for line in watch.lines))
            tree.write("class/infiniband/mlx5_0/ports/1", state="1: DOWN", phys_state="2: Polling")
            await watch.until(lambda: watch.codes() == ["ib-port-down"])

            assert "NCCL_IB_HCA" not in hardware.with_health(telemetry.report).nccl_env()

    asyncio.run(scenario())


def test_hanging_gpu_is_left_out_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tree: SysfsTree) -> None:
    async def scenario() -> None:
        nvml = FakeNvml(monkeypatch, tmp_path, machine.dgx_h100())
        clock = JumpingClock()
        async with running(tree.root, stall=5.0, clock=clock) as (telemetry, watch):
            await watch.until(lambda: bool(watch.samples()))
            nvml.add("gpu4.hang = 1")
            await watch.until(lambda: bool(telemetry.report.quarantine))
            assert list(telemetry.report.quarantine) == [machine.uuid(4)]
            count = len(watch.samples())
            await watch.until(lambda: len(watch.samples()) > count + 2)

            assert [gpu.index for gpu in watch.samples()[-1].gpus] == [0, 1, 2, 3, 5, 6, 7]

            # It answers again: a look finds it well, it is watched again, and its quarantine is lifted.
            nvml.add("gpu4.hang = 0")
            clock.skipped += 3600
            await watch.until(lambda: len(watch.samples()[-1].gpus) == 8)
            clock.skipped += 3600
            await watch.until(lambda: telemetry.report == Report([], {}))

    asyncio.run(scenario())


def test_gpu_that_hangs_before_it_tells_its_name_is_known_from_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tree: SysfsTree
) -> None:
    async def scenario() -> None:
        nvml = FakeNvml(monkeypatch, tmp_path, machine.l40s(3))
        async with running(tree.root, stall=2.0) as (telemetry, watch):
            await watch.until(lambda: bool(watch.samples()))
            # The second one hangs when the helper that replaces the first opens it.
            nvml.add("gpu0.hang = 1", "gpu1.hang = 1")
            await watch.until(lambda: set(telemetry.report.quarantine) == {machine.uuid(0), machine.uuid(1)})
            await watch.until(lambda: [gpu.index for gpu in watch.samples()[-1].gpus] == [2])

    asyncio.run(scenario())


def test_lost_gpu_that_comes_back_is_tested_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tree: SysfsTree) -> None:
    async def scenario() -> None:
        nvml = FakeNvml(monkeypatch, tmp_path, machine.dgx_h100())
        clock = JumpingClock()
        async with running(tree.root, clock=clock) as (telemetry, watch):
            await watch.until(lambda: bool(watch.samples()))
            nvml.add("gpu6.lost = 1")
            await watch.until(lambda: bool(telemetry.report.quarantine))

            # Back, but with a row that waits to be remapped: the re-test does not pass.
            nvml.add("gpu6.lost = 0", "gpu6.remapped = 0,1,1,0")
            await watch.until(lambda: "row-remap-pending" in watch.codes())
            clock.skipped += 3600
            count = len(watch.samples())
            await watch.until(lambda: len(watch.samples()) > count + 20)
            assert "gpu-lost" in watch.codes()

            nvml.add("gpu6.remapped = 0,1,0,0")
            await watch.until(lambda: watch.codes() == ["gpu-lost"])
            clock.skipped += 3600
            await watch.until(lambda: telemetry.report == Report([], {}))

    asyncio.run(scenario())


def test_driver_that_was_loaded_later(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tree: SysfsTree) -> None:
    async def scenario() -> None:
        nvml = FakeNvml(monkeypatch, tmp_path, machine.l40s(2) + "sys.init = !9\n")
        async with running(tree.root) as (telemetry, watch):
            await watch.until(lambda: any(isinstance(line, Ports) for line in watch.lines))
            nvml.add("sys.init = 0")
            telemetry.restart()
            await watch.until(lambda: any(len(sample.gpus) == 2 for sample in watch.samples()))
            assert telemetry.report.problems == []

    asyncio.run(scenario())


def test_silent_helper_is_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tree: SysfsTree) -> None:
    (tmp_path / "silent_sampler.py").write_text(
        "import pathlib, sys, time\n"
        f"mark = pathlib.Path({str(tmp_path / 'started')!r})\n"
        "first = not mark.exists()\n"
        "mark.touch()\n"
        "while first:\n    time.sleep(600)\n"
        'print(\'{"kind":"sample","gpus":[]}\', flush=True)\n'
        "time.sleep(600)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    async def scenario() -> None:
        async with running(tree.root, stall=3.0, module="silent_sampler") as (telemetry, watch):
            await watch.until(lambda: watch.codes() == ["telemetry-hung"])
            await watch.until(lambda: bool(watch.samples()))
            assert telemetry.report.problems == []

    asyncio.run(scenario())


def test_helper_that_dies_is_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tree: SysfsTree) -> None:
    (tmp_path / "dying_sampler.py").write_text(
        'print(\'{"kind":"sample","gpus":[]}\', flush=True)\nraise SystemExit(\'bad day\')\n'
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    async def scenario() -> None:
        async with running(tree.root, module="dying_sampler") as (_, watch):
            await watch.until(lambda: len(watch.samples()) >= 2)
            assert "bad day" in next(report for report in watch.reports if report.problems).problems[0].text

    asyncio.run(scenario())


def test_host_without_gpus_still_watches_its_ports(tmp_path: Path, tree: SysfsTree) -> None:
    async def scenario() -> None:
        async with running(tree.root) as (telemetry, watch):
            await watch.until(lambda: sum(isinstance(line, Ports) for line in watch.lines) > 2)
            assert telemetry.report == Report([], {})

    asyncio.run(scenario())


def test_power_caps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tree: SysfsTree) -> None:
    async def scenario() -> None:
        nvml = FakeNvml(monkeypatch, tmp_path, machine.dgx_h100())
        hardware = await detect(tree.root, 60)
        limits = power_limits(hardware.topology(), machine.uuid(1))
        assert limits == LIMITS
        async with running(tree.root) as (telemetry, watch):
            await watch.until(lambda: bool(watch.samples()))

            assert await telemetry.set_power(machine.uuid(1), limits, 450) == 450
            await watch.until(lambda: watch.samples()[-1].gpus[1].power_limit == 450_000)
            assert watch.samples()[-1].gpus[0].power_limit == 700_000
            assert await telemetry.set_power(machine.uuid(1), limits, None) == 700
            await watch.until(lambda: watch.samples()[-1].gpus[1].power_limit == 700_000)

            with pytest.raises(PowerCapRangeError, match="outside of 200 to 700 W"):
                await telemetry.set_power(machine.uuid(1), limits, 800)
            with pytest.raises(PowerCapUnsupportedError):
                await telemetry.set_power(machine.uuid(1), power_limits(hardware.topology(), "GPU-none"), 100)
            nvml.add("sys.setpower = !4")
            with pytest.raises(PowerCapRefusedError, match="needs root"):
                await telemetry.set_power(machine.uuid(1), limits, 500)

    asyncio.run(scenario())


def test_metrics(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tree: SysfsTree) -> None:
    async def scenario() -> None:
        extra = "gpu0.util = 97,40\ngpu0.power = 612000\ngpu0.reasons = 0x44\ngpu0.fi.138 = 2\ngpu0.link3.err0 = 5\n"
        nvml = FakeNvml(monkeypatch, tmp_path, machine.dgx_h100(dead=[7]) + extra)
        registry = CollectorRegistry()
        metrics = HardwareMetrics(registry)
        metrics.hardware(await detect(tree.root, 60))
        async with running(tree.root) as (telemetry, watch):
            await watch.until(lambda: bool(watch.samples()))
            nvml.add("gpu0.xid = 1:48")
            await watch.until(lambda: any(isinstance(line, Event) for line in watch.lines))
            await watch.until(lambda: any(isinstance(line, Ports) for line in watch.lines))
            for line in watch.lines:
                metrics.sample(line)
            metrics.report(telemetry.report)
        text = generate_latest(registry).decode()
        where = f'class="H100-80GB",gpu="{machine.uuid(0)}"'
        for wanted in (
            f'llmgw_gpu_utilization_ratio{{{where},pci="0000:1b:00.0"}} 0.97',
            f'llmgw_gpu_power_watts{{{where},pci="0000:1b:00.0"}} 612.0',
            f'llmgw_gpu_nvlink_transmit_bytes_total{{{where},pci="0000:1b:00.0"}} 2048.0',
            f'llmgw_gpu_nvlink_errors_total{{{where},kind="replay",link="3",pci="0000:1b:00.0"}} 5.0',
            f'llmgw_gpu_throttled{{{where},pci="0000:1b:00.0",reason="thermal (hardware)"}} 1.0',
            f'llmgw_gpu_xid_errors_total{{{where},pci="0000:1b:00.0",xid="48"}} 1.0',
            f'llmgw_gpu_nvlink_up{{class="H100-80GB",gpu="{machine.uuid(5)}",link="7",pci="0000:c3:00.0"}} 0.0',
            'llmgw_rdma_port_active{hca="mlx5_0",link_layer="InfiniBand",port="1"} 1.0',
            'llmgw_rdma_port_rate_bits_per_second{hca="mlx5_0",link_layer="InfiniBand",port="1"} 4e+11',
            'llmgw_rdma_port_transmit_bytes_total{hca="mlx5_0",link_layer="InfiniBand",port="1"} 4000.0',
            f'llmgw_hardware_quarantined{{reason="xid",subject="{machine.uuid(0)}"}} 1.0',
            'llmgw_hardware_problems{code="xid"} 1.0',
        ):
            assert wanted in text, f"{wanted}\n{text}"

    asyncio.run(scenario())


def test_helper_ends_with_the_agent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also when a driver call holds one of its threads."""
    FakeNvml(monkeypatch, tmp_path, machine.l40s(1) + "gpu0.hang = 1\n")
    process = subprocess.Popen(
        [sys.executable, "-m", SAMPLER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline()
    process.stdin.close()
    assert process.wait(PATIENCE) == 0
    process.stdout.close()


def test_rates() -> None:
    def port(**counters: int) -> PortSample:
        return PortSample(hca="mlx5_0", port=1, state="ACTIVE", phys_state="LinkUp", counters=counters)

    meter = RateMeter()
    meter.update(10, [port(port_xmit_bytes=1000, symbol_error=5)])
    assert meter.rates == {}
    meter.update(15, [port(port_xmit_bytes=6000, symbol_error=5)])
    assert meter.rates == {"mlx5_0:1": {"port_xmit_bytes": 1000.0, "symbol_error": 0.0}}
    # Somebody cleared them.
    meter.update(20, [port(port_xmit_bytes=10, symbol_error=7)])
    assert meter.rates == {"mlx5_0:1": {"symbol_error": 0.4}}
