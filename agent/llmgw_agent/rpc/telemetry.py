"""Figures of the node's GPUs and shards, from what is sampled for their health and metrics anyway."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import AsyncGenerator, Callable, Iterable

from llmgw_agent.hardware.raw import GpuSample, Sample
from llmgw_agent.host.memory import read_memory
from llmgw_agent.live import LiveHardware
from llmgw_agent.shard.context import Context
from llmgw_agent.shard.holder import shard_of
from llmgw_agent.shard.insight import resident
from llmgw_agent.shard.runner import Runner
from llmgw_agent.shard.supervisor import Supervisor
from llmgw_proto import shards_pb2

EVERY = 2.0
LEAST, MOST = 0.2, 3600.0


class Telemetry:
    """Keeps the last sample of each GPU, and tells each shard what its processes hold there."""

    def __init__(self, context: Context, hardware: LiveHardware, supervisor: Callable[[], Supervisor | None]) -> None:
        self._context, self._hardware, self._supervisor = context, hardware, supervisor
        self._gpus: dict[str, tuple[float, GpuSample]] = {}
        hardware.watch.sample_listeners.append(self.hear)

    def hear(self, sample: Sample) -> None:
        """A sample of all GPUs; must not block."""
        now = self._context.clock.monotonic()
        for gpu in sample.gpus:
            self._gpus[gpu.uuid] = now, gpu
        if any(gpu.processes is not None for gpu in sample.gpus):
            self._attribute(sample.gpus)

    async def samples(self, every: float, count: int) -> AsyncGenerator[shards_pb2.TelemetrySample, None]:
        """
        Args:
            every: seconds between two; 0 takes 2.
            count: how many; 0: for ever.

        Raises:
            ValueError: ``every`` makes no sense.
        """
        if not math.isfinite(every) or (every and not LEAST <= every <= MOST):
            raise ValueError(f"every: {every} s is not between {LEAST:g} and {MOST:g}")
        given = 0
        while True:
            yield await self._sample()
            given += 1
            if given == count:
                return
            await self._context.clock.sleep(every or EVERY)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _runners(self) -> list[Runner]:
        supervisor = self._supervisor()
        workers = [supervisor.worker(shard) for shard in sorted(supervisor.shards)] if supervisor is not None else []
        return [worker.runner for worker in workers if worker is not None and worker.runner is not None]

    def _attribute(self, gpus: Iterable[GpuSample]) -> None:
        runners = {runner.shard: runner for runner in self._runners()}
        leaders = {runner.engine.pid: shard for shard, runner in runners.items() if runner.engine is not None}
        held: dict[str, dict[str, int]] = {shard: {} for shard in runners}
        for gpu in gpus:
            for process in gpu.processes or ():
                shard = shard_of(process.pid, self._context.owner, leaders)
                if shard in held and process.memory is not None:
                    held[shard][gpu.uuid] = held[shard].get(gpu.uuid, 0) + process.memory
        for shard, runner in runners.items():
            runner.measures.gpu_memory(held[shard])

    async def _sample(self) -> shards_pb2.TelemetrySample:
        now = self._context.clock.monotonic()
        runners = self._runners()
        pids = {runner.shard: runner.engine.pid for runner in runners if runner.engine is not None}
        sizes = await asyncio.to_thread(lambda: {shard: resident(pid) for shard, pid in pids.items()})
        quarantine = self._hardware.watch.telemetry.report.quarantine
        return shards_pb2.TelemetrySample(
            at=self._context.clock.wall(),
            load1=os.getloadavg()[0],
            memory_available_bytes=read_memory().available,
            gpus=[_gpu(gpu, now - at, quarantine.get(uuid, "")) for uuid, (at, gpu) in sorted(self._gpus.items())],
            shards=[_shard(runner, sizes.get(runner.shard, 0)) for runner in runners],
        )


def _gpu(gpu: GpuSample, age: float, quarantine: str) -> shards_pb2.GpuTelemetry:
    return shards_pb2.GpuTelemetry(
        uuid=gpu.uuid,
        age=age,
        utilization=gpu.utilization[0] if gpu.utilization else None,
        memory_used_bytes=gpu.memory_used,
        memory_total_bytes=gpu.memory_total,
        power=None if gpu.power is None else gpu.power / 1000,
        power_limit=None if gpu.power_limit is None else gpu.power_limit / 1000,
        temperature=gpu.temperature,
        clock_sm=gpu.clock_sm,
        quarantine=quarantine,
    )


def _shard(runner: Runner, rss: int) -> shards_pb2.ShardTelemetry:
    measures, wish = runner.measures, runner.wish
    return shards_pb2.ShardTelemetry(
        shard=wish.shard,
        model=wish.model,
        state=runner.state,
        drained=runner.ledger.saved.drained,
        requests=measures.pulse.requests if measures.pulse is not None else None,
        tokens_per_second=measures.rate,
        rss_bytes=rss,
        gpu_bytes=dict(measures.gpus),
    )
