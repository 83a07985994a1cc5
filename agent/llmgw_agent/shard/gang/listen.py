"""Whether a worker's engine has opened its port."""

from __future__ import annotations

import asyncio
import contextlib

from llmgw_agent.errors import AttemptError
from llmgw_base.clock import Clock

PAUSE = 0.1
CONNECT_SECONDS = 2.0


async def until_listening(host: str, port: int, clock: Clock, limit: float) -> None:
    """
    Raises:
        AttemptError: not within ``limit`` seconds.
    """
    deadline = clock.monotonic() + limit
    while not await _listens(host, port):
        if clock.monotonic() >= deadline:
            raise AttemptError(f"the engine did not listen on {host} port {port} within {limit:g} s. Look at its log.")
        await clock.sleep(PAUSE)


async def _listens(host: str, port: int) -> bool:
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True
