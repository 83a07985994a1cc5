"""A clock that stands still until a test moves it."""

from __future__ import annotations

import asyncio
import heapq
import itertools

#: How often the loop is given a turn so that what was woken runs until it waits again. A chain of tasks that hand work to
#: each other takes a turn or two per hand-over.
SETTLE_TURNS = 100


async def settle() -> None:
    """Lets everything that can run now run, as long as it needs neither time nor I/O."""
    for _ in range(SETTLE_TURNS):
        await asyncio.sleep(0)


class FakeClock:
    """A :class:`llmgw_base.clock.Clock` for tests. ``await clock.advance(30)`` lives through 30 seconds in no time.

    ``monotonic`` and ``wall`` move together; :meth:`set_wall` moves the wall clock alone, as an operator or NTP would.
    """

    def __init__(self, *, monotonic: float = 1_000.0, wall: float = 1_800_000_000.0) -> None:
        self._now = monotonic
        self._wall_offset = wall - monotonic
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def monotonic(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._now + self._wall_offset

    def set_wall(self, wall: float) -> None:
        self._wall_offset = wall - self._now

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        waker: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._order), waker))
        await waker

    @property
    def sleepers(self) -> int:
        """How many tasks wait for time to pass."""
        return sum(not waker.done() for _, _, waker in self._sleepers)

    async def advance(self, seconds: float) -> None:
        """Moves time forward, waking due sleepers one by one at exactly their time, in order; what they start to wait
        for meanwhile counts too. Between two of them everything else runs until it waits again.
        """
        if seconds < 0:
            raise ValueError(f"time does not go back ({seconds} s)")
        target = self._now + seconds
        await settle()
        while self._sleepers and self._sleepers[0][0] <= target:
            due, _, waker = heapq.heappop(self._sleepers)
            if waker.done():
                continue
            self._now = max(self._now, due)
            waker.set_result(None)
            await settle()
        self._now = target
        await settle()
