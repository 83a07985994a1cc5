"""Running an async test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from llmgw_testing.etcd_server import SERIES, Series
from llmgw_testing.wait import eventually


def run_clean(main: Coroutine[Any, Any, None]) -> None:
    """``asyncio.run`` that fails when a task is left over at the end."""

    async def checked() -> None:
        await main
        me = asyncio.current_task()
        try:
            await eventually(lambda: asyncio.all_tasks() == {me}, within=5, what="the end of all tasks")
        except AssertionError as error:
            for task in asyncio.all_tasks() - {me}:
                error.add_note(f"left over: {task!r}")
                for frame in task.get_stack():
                    error.add_note(f"    {frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}")
            raise

    asyncio.run(checked())


def on_both(scenario: Callable[[Series], Coroutine[Any, Any, None]]) -> None:
    """Runs a scenario, most of which is waiting, against both versions at once."""

    async def named(series: Series) -> None:
        try:
            await scenario(series)
        except BaseException as error:
            error.add_note(f"with etcd {series}")
            raise

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for series in SERIES:
                group.create_task(named(series))

    run_clean(main())
