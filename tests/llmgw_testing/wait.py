"""Waiting for a condition with a deadline, instead of sleeping and hoping."""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast, overload

T = TypeVar("T")

#: How much longer a slow machine may take: it stretches every deadline of a wait, and changes nothing where all is quick.
PATIENCE = float(os.environ.get("LLMGW_TEST_PATIENCE", "1"))

_NOT_YET = object()


@overload
async def eventually(check: Callable[[], Awaitable[T]], *, within: float, what: str, every: float = 0.02) -> T: ...


@overload
async def eventually(check: Callable[[], T], *, within: float, what: str, every: float = 0.02) -> T: ...


async def eventually(check: Callable[[], Any], *, within: float, what: str, every: float = 0.02) -> Any:
    """Asks ``check`` (a function or a coroutine function) again and again and returns its first truthy value.

    Args:
        within: seconds, times :data:`PATIENCE`; an attempt that is still running at the deadline is cancelled.
        what: completes the sentence "still waiting for ...".

    Raises:
        AssertionError: nothing truthy in time; the message has the last value, or the last exception as its cause.
    """
    within *= PATIENCE
    deadline = time.monotonic() + within
    value: object = _NOT_YET
    error: Exception | None = None
    while True:
        try:
            async with asyncio.timeout(max(deadline - time.monotonic(), every)):
                found = check()
                value = await found if inspect.isawaitable(found) else found
            error = None
        except Exception as failure:  # noqa: BLE001  a check may fail in any way until it holds; the last way is reported
            error = failure
        if error is None and value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(_report(within, what, value, error)) from error
        await asyncio.sleep(every)


def wait_until(check: Callable[[], T], *, within: float, what: str, every: float = 0.02) -> T:
    """:func:`eventually` for code without an event loop; ``check`` must be a plain function that does not block."""
    within *= PATIENCE
    deadline = time.monotonic() + within
    value: object = _NOT_YET
    error: Exception | None = None
    while True:
        try:
            value, error = check(), None
        except Exception as failure:  # noqa: BLE001  a check may fail in any way until it holds; the last way is reported
            error = failure
        if error is None and value:
            return cast(T, value)
        if time.monotonic() >= deadline:
            raise AssertionError(_report(within, what, value, error)) from error
        time.sleep(every)


def _report(within: float, what: str, value: object, error: Exception | None) -> str:
    if error is not None:
        last = f"the last try raised {type(error).__name__}: {error}"
    elif value is _NOT_YET:
        last = "no try came to an end"
    else:
        last = f"the last value was {value!r}"
    return f"after {within:g} s still waiting for {what}; {last}"
