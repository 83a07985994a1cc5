"""What all exchanges of a worker share, and the waiting lines' shell."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from llmgw_router.account.ledger import Ledger
from llmgw_router.account.metrics import Metrics
from llmgw_router.admission.queue import WaitQueue
from llmgw_router.config import RouterConfig
from llmgw_router.engine.pool import Pool
from llmgw_router.health import outlier
from llmgw_router.table.directory import Directory, ModelState, Table
from llmgw_router.table.replica import Replica

logger = logging.getLogger(__name__)


class Active(Protocol):
    """Something under way: an exchange or a tunnel."""

    def check(self, now: float) -> None:
        """Applies the limits that are counted in time."""
        ...

    def cut(self) -> None:
        """The router stops and will wait no longer."""
        ...


@dataclass(slots=True)
class Core:
    """Built once by :mod:`llmgw_router.app`."""

    config: RouterConfig
    loop: asyncio.AbstractEventLoop
    now: Callable[[], float]
    """Monotonic seconds."""
    directory: Directory
    pool: Pool
    metrics: Metrics
    ledger: Ledger
    rules: outlier.Rules
    random: random.Random
    ask_usage: bool
    """Streams of this router are to tell their usage."""
    active: set[Active]
    tasks: set[asyncio.Task[None]]
    draining: bool = False

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Starts a short task that :meth:`close` awaits."""
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a task of a request failed", exc_info=error)

    async def close(self) -> None:
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- what answers say about replicas ------------------------------------------------------------------------------

    def succeeded(self, replica: Replica) -> None:
        health = replica.health
        if (health.failures or health.ejections or health.suspect) and health.success():
            logger.info("replica trusted again", extra={"fields": {"replica": replica.id}})
            self.directory.refresh()

    def failed(self, replica: Replica, reason: str, *, decisive: bool) -> None:
        self.metrics.engine_failures.add((replica.id, reason))
        if replica.gone or not replica.health.failure(self.now(), self.rules, decisive=decisive):
            return
        self.ejected(replica, reason)

    def ejected(self, replica: Replica, reason: str) -> None:
        self.metrics.ejections.add((replica.id,))
        seconds = replica.health.ejected_until - self.now()
        fields = {"replica": replica.id, "reason": reason, "seconds": round(seconds, 1)}
        logger.warning("replica ejected", extra={"fields": fields})
        self.directory.refresh()

    # --- waiting lines ------------------------------------------------------------------------------------------------

    def freed(self, replica: Replica) -> None:
        """A place at this replica is free: whoever waits longest for one of its models gets a try."""
        for name in replica.spec.models:
            state = self.directory.state(name)
            if state is not None and state.queue:
                self.wake(state, 1)

    def wake(self, state: ModelState, most: int) -> None:
        queue: WaitQueue = state.queue
        for _ in range(min(most, len(queue))):
            waiting = queue.next()
            if waiting is None:
                return
            if not waiting.try_now():
                queue.put_back(waiting)
                return

    def table_changed(self, table: Table) -> None:
        for state in list(self.directory.states()):
            if state.queue:
                self.wake(state, len(state.queue))

    def sweep(self) -> None:
        """Checks every limit that is counted in time. Called a few times a second."""
        now = self.now()
        for exchange in list(self.active):
            exchange.check(now)
        for state in list(self.directory.states()):
            for late in state.queue.expired(now):
                late.give_up()
        back = [replica for replica in self.directory.table.replicas if replica.health.tick(now)]
        if back:
            self.directory.refresh()
        self.pool.sweep(self.directory.table.replicas, now)
