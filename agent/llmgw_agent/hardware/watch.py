"""The hardware of a running agent: looks now and then, watches in between, and says when something changed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from llmgw_agent.hardware.detect import detect
from llmgw_agent.hardware.hardware import Hardware
from llmgw_agent.hardware.health import Report
from llmgw_agent.hardware.health_store import HealthStore
from llmgw_agent.hardware.metrics import HardwareMetrics
from llmgw_agent.hardware.power import PowerLimits
from llmgw_agent.hardware.processes import ForeignProcess, foreign, problems
from llmgw_agent.hardware.raw import Event, Ports, Sample
from llmgw_agent.hardware.telemetry import Settings, Telemetry, power_limits
from llmgw_base.clock import Clock, SystemClock

logger = logging.getLogger(__name__)

#: Seconds between two looks when nothing calls for one.
LOOK_EVERY = 300.0
_LEAST_PAUSE = 1.0
#: Conditions with which the set of GPUs or links changes, so that a look is due.
_LOOK_FOR = frozenset({"gpu-lost", "telemetry-hung", "nvlink-degraded", "ib-port-down", "ib-port-slow", "pcie-width"})


class HardwareWatch:
    """``publish`` gets the hardware, live health included, when what etcd shall know has changed; it must not block.

    Args:
        paths: folders whose file systems are reported.
        metrics: fed with every sample.
        store: keeps quarantines across restarts of the agent.
        owned: whether a pid is one of llmgw's; without it processes of others are not told.
    """

    def __init__(
        self,
        publish: Callable[[Hardware], None],
        *,
        settings: Settings | None = None,
        paths: Sequence[Path] = (),
        metrics: HardwareMetrics | None = None,
        store: HealthStore | None = None,
        clock: Clock | None = None,
        every: float = LOOK_EVERY,
        deadline: float = 5.0,
        owned: Callable[[int], bool] | None = None,
    ) -> None:
        self._publish, self._paths, self._metrics = publish, paths, metrics
        self._settings = settings or Settings()
        self._clock = clock or SystemClock()
        self._every, self._deadline = every, deadline
        self._found: Hardware | None = None
        self._published: tuple[object, ...] | None = None
        self._due = asyncio.Event()
        self._codes: frozenset[tuple[str, str]] = frozenset()
        self._unopened: frozenset[int] = frozenset()
        self._owned = owned
        self._foreign: dict[str, list[ForeignProcess]] = {}
        self.sample_listeners: list[Callable[[Sample], None]] = []
        """Told of each sample of the GPUs; they must not block."""
        self.telemetry = Telemetry(self._on_report, self._on_sample, self._settings, self._clock, store)

    @property
    def current(self) -> Hardware | None:
        """The last look with what live health found since; None before the first."""
        if self._found is None:
            return None
        report = self.telemetry.report
        foreign = problems(each for found in self._foreign.values() for each in found)
        return self._found.with_health(Report([*report.problems, *foreign], report.quarantine))

    async def run(self) -> None:
        """Watches until cancelled."""
        await self.look()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.telemetry.run(), name="hardware telemetry")
            group.create_task(self._looks(), name="hardware looks")

    async def look(self) -> Hardware:
        """One look now; publishes what is new."""
        before = self._readable()
        self._found = await detect(self._settings.sysfs_root, self._deadline, paths=self._paths, previous=self._found)
        if self._metrics is not None:
            self._metrics.hardware(self._found)
        if (before and self._readable() - before) or any(self._fine(index) for index in self._unopened):
            # GPUs that were reset, or a driver that was loaded, after telemetry opened its handles.
            self._unopened = frozenset()
            self.telemetry.restart()
        self._tell()
        return self._found

    def _readable(self) -> set[str]:
        found = self._found.gpus if self._found is not None else []
        return {gpu.raw.uuid for gpu in found if gpu.raw.uuid is not None and not gpu.raw.error}

    def _fine(self, index: int) -> bool:
        gpu = self._found.nvml.gpus.get(index) if self._found is not None else None
        return gpu is not None and not gpu.error

    async def _looks(self) -> None:
        while True:
            await self._pause()
            await self.look()
            await self._clock.sleep(_LEAST_PAUSE)

    async def _pause(self) -> None:
        """Until the next look is due: by time, or because of a condition."""
        waits = {asyncio.create_task(self._clock.sleep(self._every)), asyncio.create_task(self._due.wait())}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        self._due.clear()

    def _on_report(self, report: Report) -> None:
        if self._metrics is not None:
            self._metrics.report(report)
        codes = frozenset((problem.code, problem.subject) for problem in report.problems)
        if any(code in _LOOK_FOR for code, _ in codes ^ self._codes):
            self._due.set()
        self._codes = codes
        self._tell()

    def _on_sample(self, line: Sample | Ports | Event) -> None:
        if isinstance(line, Sample) and line.unopened:
            # Lost between the look and the start of telemetry: no sample will ever show it.
            self._unopened = frozenset(line.unopened)
            if any(self._fine(index) for index in self._unopened):
                self._due.set()
        if self._metrics is not None:
            self._metrics.sample(line)
        if isinstance(line, Sample):
            for each in self.sample_listeners:
                each(line)
        if isinstance(line, Sample) and self._owned is not None:
            self._judge_processes(line, self._owned)

    def _judge_processes(self, sample: Sample, owned: Callable[[int], bool]) -> None:
        for gpu in sample.gpus:
            if gpu.processes is not None:
                self._foreign[gpu.uuid] = foreign(gpu.uuid, gpu.processes, owned)
        if any(gpu.processes is not None for gpu in sample.gpus):
            self._tell()

    def _tell(self) -> None:
        found = self.current
        if found is None:
            return
        facts = (found.topology(), found.gpu_facts(), [str(problem) for problem in found.problems])
        if facts != self._published:
            self._published = facts
            self._publish(found)

    async def set_power(self, uuid: str, watts: float | None) -> float:
        """Sets a GPU's power cap in watts, None restores its default; the limit that now holds.

        Raises:
            PowerCapError: it cannot be set; the message says why.
        """
        limits = PowerLimits(None, None, None) if self._found is None else power_limits(self._found.topology(), uuid)
        return await self.telemetry.set_power(uuid, limits, watts)
