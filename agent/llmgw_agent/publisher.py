"""Makes etcd hold what this agent says, whatever happens to etcd, the lease or the keys meanwhile.

Others set and remove keys here at any time, without waiting and without errors. One task carries it out: after an outage or
the loss of the lease everything is put again, and a look over the agent's own prefixes once in a while finds what somebody
else changed and what an earlier life of this agent left behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from llmgw_base.clock import Clock
from llmgw_base.etcd.api import KeyValue, Lease, Store
from llmgw_base.etcd.errors import LeaseLostError, StoreError

Objection = Callable[[], Awaitable[str | None]]
RESYNC_SECONDS = 60.0
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 2.0
logger = logging.getLogger(__name__)


class NotOursError(StoreError):
    """The store is not the agent's. Reaction: write nothing, ask again."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a key should hold. ``leased``: it vanishes when this agent is not heard of for the lease's time."""

    value: bytes
    leased: bool


class Publisher:
    def __init__(self, store: Store, clock: Clock, prefixes: list[str], ttl: float, objection: Objection) -> None:
        """
        Args:
            prefixes: where every key is this agent's and no one else's.
            ttl: of the lease, in seconds.
            objection: asked before each registration: why nothing may be written to this store, or None.
        """
        self._store, self._clock = store, clock
        self._prefixes, self._ttl, self._objection = prefixes, ttl, objection
        self._wanted: dict[str, Wanted] = {}
        self._last_words: dict[str, bytes] = {}
        self._dirty: dict[str, None] = {}
        self._lease: Lease | None = None
        self._wake = asyncio.Event()
        self._clean = asyncio.Event()
        self._clean.set()
        self._may_sweep = False
        self._next_look = clock.monotonic()

    # --- what others say ----------------------------------------------------------------------------------------------

    def put(self, key: str, value: bytes, *, leased: bool = False) -> None:
        """Wishes the key to hold ``value``."""
        wanted = Wanted(value, leased)
        if self._wanted.get(key) != wanted:
            self._wanted[key] = wanted
            self._last_words.pop(key, None)
            self._touch(key)

    def remove(self, key: str, *, last_words: bytes | None = None) -> None:
        """Wishes the key to be gone. ``last_words``: the value it is to have for a moment before, so that watchers can tell a
        removal that is meant from a key that was lost.
        """
        if self._wanted.pop(key, None) is not None:
            if last_words is not None:
                self._last_words[key] = last_words
            self._touch(key)

    def values(self, prefix: str) -> list[bytes]:
        """What the keys below a prefix are wished to hold now."""
        return [wanted.value for key, wanted in self._wanted.items() if key.startswith(prefix)]

    @property
    def connected(self) -> bool:
        """Whether this agent is registered: it has a lease that lives."""
        return self._lease is not None and not self._lease.lost

    @property
    def pending(self) -> int:
        """How many keys etcd does not hold yet as wished."""
        return len(self._dirty)

    def allow_sweep(self) -> None:
        """From now on, keys under the prefixes that nobody wants are deleted. Call it once all engines are accounted for."""
        self._may_sweep = True
        self._next_look = self._clock.monotonic()
        self._wake.set()

    async def settled(self, limit: float) -> bool:
        """Waits up to ``limit`` seconds until etcd holds what was wished; returns whether it does."""
        try:
            async with asyncio.timeout(limit):
                await self._clean.wait()
        except TimeoutError:
            return False
        return True

    # --- the one task -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Works until cancelled. Faults of the store are waited out, and said once per outage."""
        pause, failing = FIRST_PAUSE, False
        while True:
            self._wake.clear()
            try:
                lease = await self._live_lease()
                await self._flush(lease)
                if self._clock.monotonic() >= self._next_look:
                    await self._look_over(lease)
                    self._next_look = self._clock.monotonic() + RESYNC_SECONDS
            except LeaseLostError:
                self._drop_lease("the store no longer knows it")
                continue
            except StoreError as error:
                if not failing:
                    logger.warning("cannot write to etcd, going on trying", extra={"fields": {"cause": str(error)}})
                failing = True
                await self._clock.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
                continue
            if failing:
                logger.info("writing to etcd works again")
            pause, failing = FIRST_PAUSE, False
            await self._wait(lease, self._next_look - self._clock.monotonic())

    async def close(self, *, keep: bool) -> None:
        """After :meth:`run` was cancelled. ``keep``: leased keys stay until the lease expires; else they go at once."""
        if self._lease is None:
            return
        if keep:
            await self._lease.abandon()
        else:
            with contextlib.suppress(StoreError, TimeoutError):
                async with asyncio.timeout(3):
                    await self._flush(self._lease)
            await self._lease.revoke()

    # --- steps --------------------------------------------------------------------------------------------------------

    def _touch(self, key: str) -> None:
        self._dirty.pop(key, None)  # to the end: keys are written in the order in which they were last wished
        self._dirty[key] = None
        self._clean.clear()
        self._wake.set()

    async def _live_lease(self) -> Lease:
        if self._lease is not None and self._lease.lost:
            self._drop_lease("not kept alive in time")
        if self._lease is None:
            # Another store knows nothing of the lease, so it shows here when this one is no longer the agent's own.
            problem = await self._objection()
            if problem is not None:
                raise NotOursError(problem)
            self._lease = await self._store.grant(self._ttl)
            for key, wanted in self._wanted.items():
                if wanted.leased:
                    self._touch(key)
        return self._lease

    def _drop_lease(self, reason: str) -> None:
        if self._lease is not None:
            logger.warning("lease lost, registering again; engines go on", extra={"fields": {"cause": reason}})
        self._lease = None

    async def _flush(self, lease: Lease) -> None:
        while self._dirty:
            key = next(iter(self._dirty))
            wanted = self._wanted.get(key)
            if wanted is None:
                if (words := self._last_words.get(key)) is not None:
                    await self._store.put(key, words, lease=lease.id)
                await self._store.delete(key)
            else:
                await self._store.put(key, wanted.value, lease=lease.id if wanted.leased else 0)
            if self._wanted.get(key) == wanted:
                self._dirty.pop(key, None)
                self._last_words.pop(key, None)
        self._clean.set()

    async def _look_over(self, lease: Lease) -> None:
        found: dict[str, KeyValue] = {}
        for prefix in self._prefixes:
            found |= {each.key: each for each in (await self._store.range(prefix)).items}
        for key, wanted in self._wanted.items():
            if not key.startswith(tuple(self._prefixes)):
                continue  # beside keys of others; it was put, and with its lease it comes back
            there = found.get(key)
            right_lease = there is not None and there.lease == (lease.id if wanted.leased else 0)
            if there is None or there.value != wanted.value or not right_lease:
                self._touch(key)
        if self._may_sweep:
            for key in found.keys() - self._wanted.keys():
                self._touch(key)
        await self._flush(lease)

    async def _wait(self, lease: Lease, limit: float) -> None:
        """Until there is something to do: a wish, a lost lease, or time to look over everything."""
        waits = {
            asyncio.create_task(self._wake.wait(), name="publisher-wake"),
            asyncio.create_task(lease.wait_lost(), name="publisher-lease"),
            asyncio.create_task(self._clock.sleep(max(0.0, limit)), name="publisher-resync"),
        }
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
