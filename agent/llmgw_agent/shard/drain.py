"""Waiting until an engine has nothing left to do."""

from __future__ import annotations

import asyncio
from pathlib import Path

from llmgw_agent.engines.client import EngineSilentError
from llmgw_agent.shard.serve import Serving
from llmgw_base.clock import Clock

#: Time for the routers to see the flag and to stop sending.
NOTICE_SECONDS = 1.0
LOOK_SECONDS = 0.25
QUIET_LOOKS = 2
_ESTABLISHED = "01"


async def wait_idle(serving: Serving, port: int, clock: Clock, limit: float) -> bool:
    """Waits until the engine is idle, at most ``limit`` seconds; whether it is."""
    deadline = clock.monotonic() + limit
    await clock.sleep(min(NOTICE_SECONDS, limit))
    quiet = 0
    while True:
        try:
            busy = await serving.driver.busy(serving.client)
        except EngineSilentError:
            busy = None
        if busy is None:
            busy = await asyncio.to_thread(open_connections, port) > 0
        quiet = 0 if busy else quiet + 1
        if quiet >= QUIET_LOOKS:
            return True
        if clock.monotonic() >= deadline:
            return False
        await clock.sleep(LOOK_SECONDS)


def open_connections(port: int, proc: Path = Path("/proc/net")) -> int:
    """Established TCP connections to a local port: what tells of requests where the engine does not."""
    count = 0
    for name in ("tcp", "tcp6"):
        try:
            lines = (proc / name).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            count += fields[3] == _ESTABLISHED and int(fields[1].rpartition(":")[2], 16) == port
    return count
