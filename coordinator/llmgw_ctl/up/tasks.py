"""Tasks that are never left running."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def all_of(*work: Coroutine[Any, Any, T]) -> list[T]:
    """All at once, results in order; the first failure counts, and the others are given up before it is raised."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        await give_up(*tasks)


async def give_up(*tasks: asyncio.Task[Any]) -> None:
    """Cancels and waits; what they raise is of no interest any more."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
