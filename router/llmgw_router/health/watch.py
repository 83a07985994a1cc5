"""Decides who is probed, and what a probe changes: suspects, silent ones, vanished ones, and all of them in static mode."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable

from llmgw_base.clock import Clock
from llmgw_router.config import HealthSection
from llmgw_router.errors import ConnectError, EngineError
from llmgw_router.health.prober import Prober
from llmgw_router.relay.core import Core
from llmgw_router.table.replica import Replica

logger = logging.getLogger(__name__)


def wants_probe(replica: Replica, now: float, rules: HealthSection, *, probe_all: bool) -> bool:
    """Whether this replica's health is in doubt. Pure."""
    if probe_all or replica.health.suspect or replica.health.ejected or replica.spec.vanished:
        return True
    return replica.load > 0 and now - replica.last_byte > rules.silent_seconds


class HealthWatch:
    def __init__(
        self,
        core: Core,
        prober: Prober,
        clock: Clock,
        *,
        probe_all: bool,
        vanished_dead: Callable[[Replica], None],
    ) -> None:
        self._core = core
        self._prober = prober
        self._clock = clock
        self._rules = core.config.health
        self._probe_all = probe_all
        self._vanished_dead = vanished_dead
        self._probing: dict[Replica, asyncio.Task[None]] = {}
        self._asked: set[Replica] = set()
        self._last: dict[Replica, float] = {}
        self._wake = asyncio.Event()

    def hurry(self) -> None:
        """The table changed: look at it now."""
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                self._round()
                self._wake.clear()
                try:
                    async with asyncio.timeout(min(0.25, self._rules.probe_seconds)):
                        await self._wake.wait()
                except TimeoutError:
                    continue
        finally:
            tasks = list(self._probing.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _round(self) -> None:
        now = self._clock.monotonic()
        table = self._core.directory.table
        for gone in [each for each in self._last if each.gone]:
            self._last.pop(gone)
            self._asked.discard(gone)
        for replica in table.replicas:
            if replica in self._probing or now - self._last.get(replica, -1e9) < self._rules.probe_seconds:
                continue
            fresh = replica not in self._asked
            if fresh or wants_probe(replica, now, self._rules, probe_all=self._probe_all):
                self._last[replica] = now
                task = asyncio.create_task(self._probe(replica, cards=fresh))
                self._probing[replica] = task
                task.add_done_callback(functools.partial(self._probed, replica))

    def _probed(self, replica: Replica, _: asyncio.Task[None]) -> None:
        self._probing.pop(replica, None)

    async def _probe(self, replica: Replica, *, cards: bool) -> None:
        health = replica.health
        if cards:
            found = await self._prober.cards(replica)
            if found is not None:
                replica.card = found
                self._asked.add(replica)
        if cards and not wants_probe(replica, self._clock.monotonic(), self._rules, probe_all=self._probe_all):
            self._asked.add(replica)
            return
        error = await self._prober.healthy(replica)
        if replica.gone:
            return
        if error is None:
            if health.probe_success():
                logger.info("replica back after a probe", extra={"fields": {"replica": replica.id}})
                self._core.directory.refresh()
            elif replica.load == 0 and not health.ejected:
                health.suspect = False
            return
        self._missed(replica, error)

    def _missed(self, replica: Replica, error: EngineError) -> None:
        health = replica.health
        now = self._clock.monotonic()
        decisive = isinstance(error, ConnectError)
        if not decisive and now - replica.last_byte < self._rules.silent_seconds:
            # Too busy for a probe, but its answers flow: that is the better sign of life.
            return
        logger.debug("probe failed", extra={"fields": {"replica": replica.id, "cause": str(error)}})
        if replica.spec.vanished and (decisive or health.probe_failures + 1 >= self._rules.probe_failures):
            self._vanished_dead(replica)
            return
        health.suspect = True
        if health.probe_failure(now, self._core.rules, limit=self._rules.probe_failures, decisive=decisive):
            self._core.ejected(replica, error.code)
