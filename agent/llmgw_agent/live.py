"""The hardware as it is now, for whoever publishes or asks: one watch, whose faults stay its own."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from llmgw_agent.hardware.hardware import Hardware
from llmgw_agent.hardware.health_store import HealthStore
from llmgw_agent.hardware.metrics import HardwareMetrics
from llmgw_agent.hardware.watch import HardwareWatch
from llmgw_agent.host.inventory import Devices, written_paths
from llmgw_agent.process.home import lives_at
from llmgw_agent.process.identity import NODE, read_environment, read_stat
from llmgw_agent.shard.context import Context
from llmgw_base.clock import Clock
from llmgw_proto import keyspace
from llmgw_proto.records import ShardRecord

#: Seconds that the node waits for the first look before it says what it is without it; a look itself gives up after 5.
FIRST_LOOK = 8.0
AGAIN_AFTER = 10.0
#: A process is found to be an engine's by its ancestors; no real tree is deeper.
_DEEPEST = 64
logger = logging.getLogger(__name__)


class LiveHardware:
    """Runs the watch for ever; whatever becomes of it, the agent and its engines go on with what was found before."""

    def __init__(
        self,
        make: Callable[..., HardwareWatch],
        *,
        clock: Clock,
        paths: Sequence[Path],
        metrics: HardwareMetrics,
        store: HealthStore,
        owned: Callable[[int], bool],
    ) -> None:
        """
        Args:
            make: :class:`HardwareWatch` itself; tests have another.
        """
        self._clock = clock
        self._looked = asyncio.Event()
        self.changed = asyncio.Event()
        """Set when there is something new in :attr:`devices`; whoever has taken it clears it."""
        self.listeners: list[Callable[[], None]] = [self.changed.set]
        """Called after each change."""
        self.devices = Devices()
        self.watch = make(self._publish, paths=paths, metrics=metrics, store=store, clock=clock, owned=owned)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self.watch.run()
            except Exception:
                logger.exception("fault in the watch over the hardware; it begins anew in %g s", AGAIN_AFTER)
            self._looked.set()
            await self._clock.sleep(AGAIN_AFTER)

    async def first(self) -> None:
        """Returns after the first look, or when it takes too long."""
        waits = {asyncio.create_task(self._looked.wait()), asyncio.create_task(self._clock.sleep(FIRST_LOOK))}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        if not self._looked.is_set():
            logger.warning("the first look at the hardware takes long; the node is published without it for now")

    def _publish(self, found: Hardware) -> None:
        self.devices = Devices(found.gpu_facts(), found.topology(), [str(problem) for problem in found.problems])
        self._looked.set()
        for each in self.listeners:
            each()


def live_hardware(make: Callable[..., HardwareWatch], context: Context, metrics: HardwareMetrics) -> LiveHardware:
    """For a node; quarantines are kept in its state folder."""
    config = context.config
    return LiveHardware(
        make,
        clock=context.clock,
        paths=written_paths(config),
        metrics=metrics,
        store=HealthStore(config.state_dir / "health.json", context.boot),
        owned=lambda pid: is_ours(pid, context),
    )


def shards_here(context: Context) -> list[ShardRecord]:
    """What the node says of its shards now."""
    return [ShardRecord.decode(value) for value in context.publisher.values(keyspace.shards_of(context.node))]


def is_ours(pid: int, context: Context) -> bool:
    """Whether a process on a GPU belongs to an engine of this node, or to the agent itself.

    Engines may overwrite their environment with a title, so the pids that are known count as well as the marks in it.
    """
    known = {os.getpid(), *(record.pid for record in shards_here(context) if record.pid is not None)}
    for _ in range(_DEEPEST):
        stat = read_stat(pid)
        if pid in known or (stat is not None and stat.session in known):
            return True
        # Last: the environment of a process that hangs in its driver may not come for as long as it hangs.
        if lives_at(pid, context.owner) or read_environment(pid).get(NODE) == context.node:
            return True
        if stat is None or stat.parent <= 1:
            return False
        pid = stat.parent
    return False
