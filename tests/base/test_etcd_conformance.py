"""What every store does, held against real servers of both versions and against the twin in memory."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from llmgw_base.clock import SystemClock
from llmgw_base.etcd.api import CreateRevisionIs, Deleted, DeleteOp, ModRevisionIs, Operation, Put, PutOp, Store, Synced
from llmgw_base.etcd.client import EtcdStore
from llmgw_base.etcd.errors import LeaseLostError, StoreRefusedError, StoreUnavailableError
from llmgw_testing.etcd_server import SERIES, EtcdServer
from llmgw_testing.follower import Follower
from llmgw_testing.memstore import MemoryStore
from llmgw_testing.scenario import run_clean

_numbers = itertools.count()
Open = Callable[[], Store]


class Backend:
    """Makes stores on one server; ``prefix`` is a fresh one for each test."""

    def __init__(self, open_store: Open) -> None:
        self._open = open_store
        self.prefix = f"/t{next(_numbers)}/"

    @asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        store = self._open()
        try:
            yield store
        finally:
            await store.close()


@pytest.fixture(scope="module", params=["memory", *SERIES])
def opener(request: pytest.FixtureRequest) -> Iterator[Open]:
    if request.param == "memory":
        yield lambda: MemoryStore(SystemClock())
    else:
        with EtcdServer(request.param, unix=True) as server:
            section = server.section()
            yield lambda: EtcdStore(section, SystemClock())


@pytest.fixture
def backend(opener: Open) -> Backend:
    return Backend(opener)


def test_put_get_delete(backend: Backend) -> None:
    async def main() -> None:
        async with backend.store() as store:
            key = backend.prefix + "key"
            assert await store.get(key) is None
            created = await store.put(key, b"1")
            changed = await store.put(key, b"\x00\xff" * 1000)
            assert changed > created
            item = await store.get(key)
            assert item is not None
            assert (item.key, item.value, item.create_revision, item.mod_revision, item.lease) == (
                key,
                b"\x00\xff" * 1000,
                created,
                changed,
                0,
            )
            assert await store.delete(key) is True
            assert await store.delete(key) is False
            assert await store.get(key) is None

    run_clean(main())


def test_range_holds_the_prefix_and_nothing_else(backend: Backend) -> None:
    async def main() -> None:
        async with backend.store() as store:
            empty = await store.range(backend.prefix)
            assert empty.items == ()
            prefix = backend.prefix
            for key in ("b", "a/1", "a", "ä"):
                revision = await store.put(prefix + key, key.encode())
            await store.put(prefix[:-1] + "0", b"just behind the prefix")
            await store.put(prefix[:-1], b"just before it")
            snapshot = await store.range(prefix)
            assert [item.key for item in snapshot.items] == [prefix + key for key in ("a", "a/1", "b", "ä")]
            assert [item.value.decode() for item in snapshot.items] == ["a", "a/1", "b", "ä"]
            assert snapshot.revision == revision + 2
            assert snapshot.cluster_id == empty.cluster_id != 0

    run_clean(main())


def test_txn(backend: Backend) -> None:
    async def main() -> None:
        async with backend.store() as store:
            a, b, c = (backend.prefix + name for name in "abc")
            assert await store.txn([CreateRevisionIs(a, 0)], [PutOp(a, b"1"), PutOp(b, b"1")])
            first = await store.get(a)
            other = await store.get(b)
            assert first is not None and other is not None
            assert first.mod_revision == other.mod_revision == first.create_revision

            assert not await store.txn([CreateRevisionIs(a, 0)], [PutOp(a, b"2")], [PutOp(c, b"else")])
            assert (await store.get(a)) == first
            assert (await store.get(c)) is not None

            assert await store.txn(
                [ModRevisionIs(a, first.mod_revision), CreateRevisionIs(a, first.create_revision)],
                [PutOp(a, b"2"), DeleteOp(b), DeleteOp(backend.prefix + "none")],
            )
            assert await store.get(b) is None
            changed = await store.get(a)
            assert changed is not None
            assert (changed.value, changed.create_revision) == (b"2", first.create_revision)
            assert not await store.txn([ModRevisionIs(a, first.mod_revision)], [PutOp(a, b"3")])
            assert await store.txn([], [])
            assert await store.txn([ModRevisionIs(b, 0)], [])

    run_clean(main())


def test_bad_requests_are_refused(backend: Backend) -> None:
    async def main() -> None:
        async with backend.store() as store:
            key = backend.prefix + "a"
            twice: list[Operation] = [PutOp(key, b"1"), PutOp(key, b"2")]
            put_and_deleted: list[Operation] = [PutOp(key, b"1"), DeleteOp(key)]
            nameless: list[Operation] = [PutOp("", b"1")]
            for operations in (twice, put_and_deleted, nameless):
                with pytest.raises(StoreRefusedError):
                    await store.txn([], operations)
            assert await store.get(key) is None
            with pytest.raises(LeaseLostError):
                await store.put(key, b"1", lease=4711)

    run_clean(main())


def test_lease_binds_keys_and_is_kept_alive(backend: Backend) -> None:
    async def main() -> None:
        async with backend.store() as store:
            key = backend.prefix + "alive"
            lease = await store.grant(2)
            assert lease.ttl == 2
            await store.put(key, b"x", lease=lease.id)
            item = await store.get(key)
            assert item is not None
            assert item.lease == lease.id
            await asyncio.sleep(lease.ttl * 1.25)
            assert not lease.lost
            assert await store.get(key) is not None
            await lease.revoke()
            assert await store.get(key) is None
            assert "revoked" in await lease.wait_lost()
            await lease.revoke()

    run_clean(main())


def test_closing_the_store_abandons_its_leases(backend: Backend) -> None:
    async def main() -> None:
        async with backend.store() as store:
            lease = await store.grant(30)
        assert "abandoned" in await lease.wait_lost()
        with pytest.raises(StoreUnavailableError, match="closed by this program"):
            await store.get(backend.prefix)

    run_clean(main())


def test_watch_lists_then_follows(backend: Backend) -> None:
    async def main() -> None:
        async with backend.store() as store:
            a, b = backend.prefix + "a", backend.prefix + "b"
            first = await store.put(a, b"1")
            async with Follower(store.watch(backend.prefix)) as follower:
                await follower.synced()
                assert follower.changes == [Put(a, b"1", first, None, first), Synced(first)]
                follower.changes.clear()
                second = await store.put(b, b"1")
                await store.put(b, b"1")  # the same value again is no change
                third = await store.put(b, b"2")
                await store.delete(a)
                await store.put(backend.prefix[:-1] + "0", b"elsewhere")
                await store.txn([], [PutOp(a, b"9"), DeleteOp(b)])
                await follower.until(lambda: len(follower.changes) >= 5, what="five changes")
                fourth = await store.get(a)
                assert fourth is not None
                assert follower.changes[:3] == [
                    Put(b, b"1", second, None, second),
                    Put(b, b"2", third, b"1", second),
                    Deleted(a, b"1"),
                ]
                assert set(follower.changes[3:]) == {
                    Put(a, b"9", fourth.mod_revision, None, fourth.create_revision),
                    Deleted(b, b"2"),
                }

    run_clean(main())


def test_watch_of_an_empty_prefix(backend: Backend) -> None:
    async def main() -> None:
        async with backend.store() as store, Follower(store.watch(backend.prefix)) as follower:
            await follower.synced()
            assert len(follower.changes) == 1
            await store.put(backend.prefix + "a", b"")
            await follower.until(lambda: follower.state == {backend.prefix + "a": b""}, what="an empty value")

    run_clean(main())


def test_an_abandoned_lease_runs_out_and_watches_see_it(backend: Backend) -> None:
    async def main() -> None:
        async with backend.store() as store, Follower(store.watch(backend.prefix)) as follower:
            key = backend.prefix + "a"
            lease = await store.grant(1)
            await store.put(key, b"x", lease=lease.id)
            await follower.until(lambda: key in follower.state, what="the key")
            await lease.abandon()
            await follower.until(lambda: Deleted(key, b"x") in follower.changes, what="the deletion")

    run_clean(main())


def test_many_watches_and_writers_at_once(backend: Backend) -> None:
    async def main() -> None:
        async with backend.store() as store:
            prefixes = [f"{backend.prefix}{index}/" for index in range(10)]
            async with asyncio.TaskGroup() as group:
                for prefix in prefixes:
                    group.create_task(_write_and_follow(store, prefix))

    async def _write_and_follow(store: Store, prefix: str) -> None:
        async with Follower(store.watch(prefix)) as follower:
            for number in range(20):
                await store.put(f"{prefix}{number % 5}", b"%d" % number)
            await follower.until(
                lambda: follower.state == {f"{prefix}{number % 5}": b"%d" % number for number in range(15, 20)},
                what="the last values",
            )

    run_clean(main())


def test_a_call_can_be_cancelled(backend: Backend) -> None:
    """Cancelling is the caller's doing: it comes out as such, and the store goes on working."""

    async def main() -> None:
        async with backend.store() as store:
            calls: list[Awaitable[object]] = [
                store.get(backend.prefix),
                store.range(backend.prefix),
                store.put(backend.prefix + "x", b""),
                store.txn([], []),
            ]
            tasks = [asyncio.ensure_future(call) for call in calls]
            await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
            await store.put(backend.prefix + "a", b"1")
            assert await store.get(backend.prefix + "a") is not None

    run_clean(main())


def test_a_watch_can_be_closed_at_any_time(backend: Backend) -> None:
    async def main() -> None:
        async with backend.store() as store:
            await store.put(backend.prefix + "a", b"1")
            for turns in range(0, 60, 3):
                watch = store.watch(backend.prefix)
                task = asyncio.ensure_future(anext(watch))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait({task})
                await watch.aclose()
            await store.watch(backend.prefix).aclose()

    run_clean(main())


def test_closing_the_store_ends_its_watches(backend: Backend) -> None:
    async def main() -> None:
        async with backend.store() as store:
            watch = store.watch(backend.prefix)
            assert isinstance(await anext(watch), Synced)
            waiting = asyncio.ensure_future(anext(watch, None))
            await asyncio.sleep(0.05)
        assert await asyncio.wait_for(waiting, 10) is None

    run_clean(main())
