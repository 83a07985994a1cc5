"""Twins of the etcd client for tests: one that works in memory, one that only fails.

::

    clock = FakeClock()
    store = MemoryStore(clock)                       # its own server
    other = MemoryStore(clock, server=store.server)  # a second program on the same etcd

    store.down(); store.up()          # this client is cut off; the server lives on, its leases run down
    store.server.stop(); ...start()   # etcd itself is down
    store.wipe()                      # the data is gone
    store.lose_next_answer()          # the next write happens, its answer is lost
    store.fail_next(error)            # the next call fails

Watches and leases run the code of the real client (:mod:`llmgw_base.etcd.watcher`, :mod:`llmgw_base.etcd.lease`) and the
whole is held to the same conformance tests. A watch notices trouble and recovery at once, without waiting for the clock.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import NoReturn, TypeVar

from llmgw_base.clock import Clock, SystemClock
from llmgw_base.etcd.api import Change, Compare, DeleteOp, KeyValue, Lease, Operation, PutOp, Snapshot, Stale
from llmgw_base.etcd.errors import OutcomeUnknownError, StoreError, StoreUnavailableError
from llmgw_base.etcd.identity import Record
from llmgw_base.etcd.lease import KeptLease
from llmgw_base.etcd.mirror import Event
from llmgw_base.etcd.timers import done_within, reap
from llmgw_base.etcd.watcher import Watcher
from llmgw_proto import keyspace
from llmgw_testing.memserver import MemoryServer

T = TypeVar("T")


class MemoryStore:
    """A :class:`llmgw_base.etcd.api.Store` in memory."""

    def __init__(self, clock: Clock | None = None, *, server: MemoryServer | None = None) -> None:
        self.clock: Clock = clock or SystemClock()
        self.server = server or MemoryServer(self.clock)
        self._cut: str | None = None
        self._cuts = 0
        self._version = 0
        self._moved = asyncio.Event()
        self._closed = False
        self._next_error: StoreError | None = None
        self._lose_next = False
        self._leases: list[KeptLease] = []

    # --- faults -----------------------------------------------------------------------------------------------------

    def down(self, reason: str = "no member answered (test)") -> None:
        """Cuts this client from the server."""
        self._cut = reason
        self._cuts += 1
        self._notify()

    def up(self) -> None:
        self._cut = None
        self._notify()

    def break_watches(self) -> None:
        """All watches of this client lose their stream once; they list again."""
        self._cuts += 1
        self._notify()

    def wipe(self) -> None:
        """See :meth:`MemoryServer.wipe`."""
        self.server.wipe()

    def lose_next_answer(self) -> None:
        """The next write is done and its answer lost: a put or delete is sent again, a transaction's outcome is unknown."""
        self._lose_next = True

    def fail_next(self, error: StoreError) -> None:
        """The next call of this client raises ``error`` and does nothing."""
        self._next_error = error

    # --- Store ------------------------------------------------------------------------------------------------------

    async def get(self, key: str) -> KeyValue | None:
        return await self._call(lambda: self.server.get(key))

    async def range(self, prefix: str) -> Snapshot:
        return await self._call(lambda: self.server.snapshot(prefix))

    async def put(self, key: str, value: bytes, *, lease: int = 0) -> int:
        def put() -> int:
            self.server.txn((), (PutOp(key, value, lease),), ())
            return self.server.revision

        revision = await self._call(put)
        return await self._call(put) if self._answer_lost() else revision

    async def delete(self, key: str) -> bool:
        def delete() -> bool:
            return self.server.txn((), (DeleteOp(key),), ())[1] > 0

        existed = await self._call(delete)
        if self._answer_lost():
            await self._call(delete)
            return True
        return existed

    async def txn(self, compares: Sequence[Compare], then: Sequence[Operation], otherwise: Sequence[Operation] = ()) -> bool:
        held, _ = await self._call(lambda: self.server.txn(compares, then, otherwise))
        if self._answer_lost():
            raise OutcomeUnknownError("etcd: transaction: the answer was lost (test)")
        return held

    async def grant(self, ttl: float) -> Lease:
        sent = self.clock.monotonic()
        lease_id = await self._call(lambda: self.server.grant(ttl))
        lease = KeptLease(lease_id, ttl, sent, clock=self.clock, ask=self._keep_alive, revoke=self._revoke)
        self._leases = [each for each in self._leases if each.kept] + [lease]
        return lease

    def watch(self, prefix: str) -> AsyncGenerator[Change, None]:
        return Watcher(_Source(self), prefix, self.clock).changes()

    async def close(self) -> None:
        self._closed = True
        self._notify()
        for lease in self._leases:
            await lease.abandon()
        self._leases.clear()

    # --- inside -----------------------------------------------------------------------------------------------------

    async def _call(self, work: Callable[[], T]) -> T:
        """One call: a turn of the loop, as a real one would take, then the fault that was ordered or the work."""
        await asyncio.sleep(0)
        self.check_reachable()
        if self._next_error is not None:
            error, self._next_error = self._next_error, None
            raise error
        return work()

    def check_reachable(self) -> None:
        if self._closed:
            raise StoreUnavailableError("etcd: the store was closed by this program")
        if self._cut is not None:
            raise StoreUnavailableError(f"etcd: {self._cut}")
        if not self.server.running:
            raise StoreUnavailableError("etcd: the server is stopped (test)")

    def _answer_lost(self) -> bool:
        lost, self._lose_next = self._lose_next, False
        return lost

    async def _keep_alive(self, lease_id: int) -> None:
        self.check_reachable()
        self.server.keep_alive(lease_id)

    async def _revoke(self, lease_id: int) -> None:
        self.check_reachable()
        self.server.revoke(lease_id)

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def generation(self) -> tuple[int, int]:
        """Changes whenever the streams of this client break."""
        return self._cuts, self.server.generation

    @property
    def version(self) -> tuple[int, int]:
        """Changes with anything, here or on the server."""
        return self._version, self.server.version

    async def changed(self, since: tuple[int, int]) -> None:
        """Returns when :attr:`version` is no longer ``since``."""
        while self.version == since:
            here = asyncio.ensure_future(self._moved.wait())
            there = asyncio.ensure_future(self.server.changed(since[1]))
            try:
                await asyncio.wait({here, there}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await reap(here, there)

    def _notify(self) -> None:
        self._version += 1
        event, self._moved = self._moved, asyncio.Event()
        event.set()


class _Source:
    """What :class:`Watcher` asks, from memory."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._seen = store.version

    @property
    def closed(self) -> bool:
        return self._store.closed

    async def snapshot(self, prefix: str, revision: int = 0) -> Snapshot:
        self._seen = self._store.version
        await asyncio.sleep(0)
        self._store.check_reachable()
        return self._store.server.snapshot(prefix, revision)

    async def record(self) -> Record:
        self._store.check_reachable()
        item = self._store.server.get(keyspace.CLUSTER)
        return Record(item.create_revision if item else 0)

    @contextlib.asynccontextmanager
    async def follow(self, prefix: str, after: Snapshot) -> AsyncIterator[_Stream]:
        self._store.check_reachable()
        yield _Stream(self._store, prefix, after.revision)

    async def pause(self, seconds: float) -> None:
        """Waits until something changes rather than for time: a test that repairs the store wants to see the effect."""
        if seconds > 0:
            await self._store.changed(self._seen)


class _Stream:
    def __init__(self, store: MemoryStore, prefix: str, after: int) -> None:
        self._store = store
        self._prefix = prefix
        self._after = after
        self._generation = store.generation

    async def next(self, until: float) -> Sequence[Event] | None:
        clock = self._store.clock
        while True:
            seen = self._store.version
            self._store.check_reachable()
            if self._generation != self._store.generation:
                raise StoreUnavailableError("etcd: the watch broke (test)")
            if events := self._store.server.events(self._prefix, self._after):
                first = [event for event in events if event.mod_revision == events[0].mod_revision]
                self._after = first[0].mod_revision
                return first
            changed = asyncio.ensure_future(self._store.changed(seen))
            try:
                if not await done_within(clock, changed, until - clock.monotonic()):
                    return None
            finally:
                await reap(changed)


class FailingStore:
    """A store whose every call raises ``error``; its watches say :class:`Stale` once and then wait for ever."""

    def __init__(self, error: StoreError | None = None) -> None:
        self.error = error or StoreUnavailableError("etcd: no member answered (test)")

    async def get(self, key: str) -> KeyValue | None:
        self._fail()

    async def range(self, prefix: str) -> Snapshot:
        self._fail()

    async def put(self, key: str, value: bytes, *, lease: int = 0) -> int:
        self._fail()

    async def delete(self, key: str) -> bool:
        self._fail()

    async def txn(self, compares: Sequence[Compare], then: Sequence[Operation], otherwise: Sequence[Operation] = ()) -> bool:
        self._fail()

    async def grant(self, ttl: float) -> Lease:
        self._fail()

    async def watch(self, prefix: str) -> AsyncGenerator[Change, None]:
        yield Stale(str(self.error))
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Nothing to close."""

    def _fail(self) -> NoReturn:
        raise self.error
