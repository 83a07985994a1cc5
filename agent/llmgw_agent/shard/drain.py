"""Waiting until an engine has nothing left to do."""

from __future__ import annotations

import asyncio

from llmgw_agent.engines.client import EngineSilentError
from llmgw_agent.shard.connections import open_connections
from llmgw_agent.shard.serve import Serving
from llmgw_base.clock import Clock

#: Time for the routers to see the flag and to stop sending.
NOTICE_SECONDS = 1.0
LOOK_SECONDS = 0.25
QUIET_LOOKS = 2


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
