"""Collects what a watch says, and holds the state that a program would have made of it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self, TypeVar

from llmgw_base.etcd.api import Change, Deleted, Frozen, Put, Stale, Synced
from llmgw_testing.wait import eventually

C = TypeVar("C", Put, Deleted, Synced, Stale, Frozen)


class Follower:
    """
    ::

        async with Follower(store.watch("/a/")) as follower:
            await follower.synced()
            await store.put("/a/1", b"x")
            await follower.until(lambda: follower.state == {"/a/1": b"x"}, what="the put")
    """

    def __init__(self, watch: AsyncGenerator[Change, None]) -> None:
        self._watch = watch
        self._task: asyncio.Task[None] | None = None
        self.changes: list[Change] = []
        self.state: dict[str, bytes] = {}
        #: What the last of Synced, Stale and Frozen was.
        self.condition: type[Change] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._follow())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._task is not None
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task})
        if not self._task.cancelled():
            self._task.result()  # the watch ended or failed, which it must not do while the store is open

    def all(self, kind: type[C]) -> list[C]:
        return [change for change in self.changes if isinstance(change, kind)]

    async def until(self, check: Callable[[], Any], *, what: str, within: float = 15.0) -> None:
        """Waits until ``check`` (a function or a coroutine function) holds; fails at once when the watch failed."""

        async def look() -> Any:
            found = check()
            return await found if inspect.isawaitable(found) else found

        checking = asyncio.ensure_future(eventually(look, within=within, what=what, every=0.01))
        assert self._task is not None
        try:
            await asyncio.wait({checking, self._task}, return_when=asyncio.FIRST_COMPLETED)
            if not checking.done():
                self._task.result()
            assert checking.done(), f"the watch ended while waiting for {what}"
            checking.result()
        except AssertionError as error:
            error.add_note(f"the watch said last: {self.changes[-8:]}")
            raise
        finally:
            checking.cancel()
            await asyncio.wait({checking})

    async def synced(self, count: int = 1, *, within: float = 15.0) -> None:
        """Waits until the watch is in sync, for at least the ``count``-th time."""
        await self.until(
            lambda: self.condition is Synced and len(self.all(Synced)) >= count, what=f"sync number {count}", within=within
        )

    async def _follow(self) -> None:
        async with aclosing(self._watch) as changes:
            async for change in changes:
                self._take(change)
                self.changes.append(change)

    def _take(self, change: Change) -> None:
        """Applies the change, and fails where it contradicts what was said before."""
        if isinstance(change, Put):
            assert change.previous == self.state.get(change.key), change
            self.state[change.key] = change.value
        elif isinstance(change, Deleted):
            assert self.state.pop(change.key) == change.previous, change
        else:
            self.condition = type(change)
