"""Time, injected. Decisions and timers take a :class:`Clock`; nothing else in llmgw reads the time or sleeps."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds from an arbitrary start, never going back. For every timer and timeout."""
        ...

    def wall(self) -> float:
        """Unix time in seconds. For humans, and for the expiry of tokens and certificates, only."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The real one."""

    # Not wrapped: a router asks for the time several times per request.
    monotonic = staticmethod(time.monotonic)
    wall = staticmethod(time.time)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
