"""One JSON line per request, written in batches and off the request path."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from datetime import UTC, datetime

import msgspec

from llmgw_base.clock import Clock
from llmgw_router.account.metrics import Metrics

_KEEP = 20_000


class Entry(msgspec.Struct, omit_defaults=True):
    """What is known about a settled request; times in seconds."""

    time: str
    request_id: str
    method: str
    path: str
    status: int
    duration: float
    client: str
    model: str = ""
    replica: str = ""
    key: str = ""
    stream: bool = False
    first_byte: float | None = None
    bytes_out: int = 0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    estimated: bool = False
    attempts: int = 0
    error: str = ""
    message: str = "request"
    program: str = "llmgw-router"


_encode = msgspec.json.Encoder().encode


def timestamp(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="milliseconds")


class AccessLog:
    """Keeps entries for a moment and writes them to stderr from a thread; drops and counts them when nobody takes them."""

    def __init__(self, metrics: Metrics, clock: Clock, *, errors_only: bool, enabled: bool) -> None:
        self.enabled = enabled
        self.errors_only = errors_only
        self._metrics = metrics
        self._clock = clock
        self._entries: deque[Entry] = deque()

    def wants(self, status: int, *, probe: bool) -> bool:
        """``probe`` is a look at the router's own health, which asks often and may be answered 503 for a while."""
        return self.enabled and (not self.errors_only or (status >= 400 and not probe))

    def add(self, entry: Entry) -> None:
        if len(self._entries) >= _KEEP:
            self._metrics.withheld.add(())
            return
        self._entries.append(entry)

    async def run(self, period: float = 0.5) -> None:
        """Until cancelled; what is left is written then."""
        try:
            while True:
                await self._clock.sleep(period)
                if self._entries:
                    await asyncio.to_thread(_write, self._take())
        finally:
            if self._entries:
                _write(self._take())

    def _take(self) -> bytes:
        entries, self._entries = self._entries, deque()
        return b"".join(_encode(each) + b"\n" for each in entries)


def _write(data: bytes) -> None:
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(sys.stderr.fileno(), view) :]
    except OSError:
        # A log that cannot be written must not stop the service.
        return
