"""Who is connected to an engine, as the kernel knows it."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

from llmgw_base.clock import Clock

_ESTABLISHED = "01"
#: Whatever is in it, the kernel takes some 10 ms to print its table on a host with much memory.
TABLE_SECONDS = 4.0


def read_table(proc: Path = Path("/proc/net")) -> Counter[int]:
    """How many established TCP connections each local port has."""
    table: Counter[int] = Counter()
    for name in ("tcp", "tcp6"):
        try:
            lines = (proc / name).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _ESTABLISHED:
                table[int(fields[1].rpartition(":")[2], 16)] += 1
    return table


def open_connections(port: int, proc: Path = Path("/proc/net")) -> int:
    """Established TCP connections to a local port: what tells of requests where the engine does not."""
    return read_table(proc)[port]


class Connections:
    """The table for all engines of the node, read again only when it is older than :data:`TABLE_SECONDS`."""

    def __init__(self, clock: Clock, proc: Path = Path("/proc/net")) -> None:
        self._clock, self._proc = clock, proc
        self._table: Counter[int] = Counter()
        self._read_at: float | None = None
        self._reading = asyncio.Lock()

    async def count(self, port: int) -> int:
        """Established connections to a local port, now or a moment ago."""
        async with self._reading:
            now = self._clock.monotonic()
            if self._read_at is None or now - self._read_at >= TABLE_SECONDS:
                self._table = await asyncio.to_thread(read_table, self._proc)
                self._read_at = now
        return self._table[port]
