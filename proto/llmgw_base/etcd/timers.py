"""Waiting for one thing for a limited time, by the injected clock."""

from __future__ import annotations

import asyncio
from typing import Any

from llmgw_base.clock import Clock


async def done_within(clock: Clock, future: asyncio.Future[Any], seconds: float) -> bool:
    """Waits until ``future`` is done, at most ``seconds``; returns whether it is. Leaves it as it is, also when cancelled."""
    if not future.done() and seconds > 0:
        timer = asyncio.ensure_future(clock.sleep(seconds))
        try:
            await asyncio.wait({future, timer}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await reap(timer)
    return future.done()


async def reap(*tasks: asyncio.Future[Any]) -> None:
    """Cancels tasks and waits for their end; their results and errors are of no interest any more."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
