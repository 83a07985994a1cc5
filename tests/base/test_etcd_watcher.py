"""The watch loop and the lease keeper by a clock that the test moves, and the twin's own faults."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from llmgw_base.etcd.api import Change, Deleted, Frozen, Put, PutOp, Stale, Synced
from llmgw_base.etcd.errors import OutcomeUnknownError, StoreError, StoreFullError, StoreUnavailableError
from llmgw_base.etcd.lease import KeptLease
from llmgw_base.etcd.timers import done_within
from llmgw_base.etcd.watcher import FULL_LIST_EVERY
from llmgw_proto import keyspace
from llmgw_testing.clock import FakeClock, settle
from llmgw_testing.follower import Follower
from llmgw_testing.memserver import MemoryServer
from llmgw_testing.memstore import FailingStore, MemoryStore
from llmgw_testing.scenario import run_clean
from llmgw_testing.wait import eventually, wait_until

Body = Callable[[FakeClock, MemoryStore, Follower], Coroutine[Any, Any, None]]


def following(body: Body) -> None:
    """Runs ``body`` with a watch of /a/ that is in sync on one key."""

    async def main() -> None:
        clock = FakeClock()
        store = MemoryStore(clock)
        await store.put(keyspace.CLUSTER, b"{}")
        await store.put("/a/1", b"1")
        async with Follower(store.watch("/a/")) as follower:
            await settle()
            assert follower.condition is Synced
            follower.changes.clear()
            await body(clock, store, follower)
        await store.close()

    run_clean(main())


# --- watch --------------------------------------------------------------------------------------------------------------


def test_a_full_list_every_few_minutes_corrects_what_no_event_told() -> None:
    async def body(clock: FakeClock, store: MemoryStore, follower: Follower) -> None:
        _write_silently(store.server, "/a/2")
        await clock.advance(FULL_LIST_EVERY - 1)
        assert follower.changes == []
        await clock.advance(1)
        assert [type(change) for change in follower.changes] == [Put, Synced]
        await clock.advance(FULL_LIST_EVERY)
        assert [type(change) for change in follower.changes] == [Put, Synced, Synced]

    following(body)


def _write_silently(server: MemoryServer, key: str) -> None:
    """A write whose event is lost."""
    server.txn((), (PutOp(key, b"x"),), ())
    server._data.history.pop()


def test_stale_is_said_once_per_outage() -> None:
    async def body(clock: FakeClock, store: MemoryStore, follower: Follower) -> None:
        for outage in range(3):
            store.down()
            await clock.advance(60)
            store.up()
            await clock.advance(1)
            assert [type(change) for change in follower.changes] == [Stale, Synced] * (outage + 1)

    following(body)


def test_compaction_lists_again_without_alarm() -> None:
    async def body(clock: FakeClock, store: MemoryStore, follower: Follower) -> None:
        for number in range(3):
            _ = store.server.txn((), (PutOp("/a/2", b"%d" % number),), ())
        store.server.compact()
        await settle()
        assert [type(change) for change in follower.changes] == [Put, Synced]
        assert follower.state == {"/a/1": b"1", "/a/2": b"2"}

    following(body)


def test_a_wiped_and_rewritten_store_stays_frozen() -> None:
    async def body(clock: FakeClock, store: MemoryStore, follower: Follower) -> None:
        other = MemoryStore(clock, server=store.server)
        store.down()
        store.server.wipe(same_cluster_id=True)
        for number in range(10):  # past the revision that was known, before the watch sees anything of it
            await other.put(f"/a/{number}", b"x")
        store.up()
        await clock.advance(60)
        assert [type(change) for change in follower.changes] == [Stale, Frozen]
        frozen = follower.changes[-1]
        assert isinstance(frozen, Frozen)
        assert "not what was seen at that revision" in frozen.reason
        store.down()
        await clock.advance(60)
        store.up()
        await clock.advance(60)
        assert len(follower.changes) == 2
        await other.close()

    following(body)


def test_the_true_store_thaws_the_watch_if_its_history_proves_it() -> None:
    async def body(clock: FakeClock, store: MemoryStore, follower: Follower) -> None:
        old = store.server.backup()
        await store.put("/a/2", b"2")
        await settle()
        newest = store.server.backup()
        store.server.restore(old)
        await clock.advance(5)
        assert [type(change) for change in follower.changes] == [Put, Stale, Frozen]
        store.server.restore(newest)
        await store.delete("/a/1")
        await clock.advance(5)
        assert [type(change) for change in follower.changes[3:]] == [Deleted, Synced]
        assert follower.state == {"/a/2": b"2"}

    following(body)


def test_without_the_proof_it_stays_frozen() -> None:
    async def body(clock: FakeClock, store: MemoryStore, follower: Follower) -> None:
        old = store.server.backup()
        await store.put("/a/2", b"2")
        await settle()
        newest = store.server.backup()
        store.server.restore(old)
        await clock.advance(5)
        store.server.restore(newest)
        await store.delete("/a/1")
        store.server.compact()
        await clock.advance(60)
        assert follower.condition is Frozen
        assert not follower.all(Deleted)

    following(body)


def test_a_restored_backup_that_lacks_keys_stays_frozen_when_its_revision_grows() -> None:
    async def body(clock: FakeClock, store: MemoryStore, follower: Follower) -> None:
        old = store.server.backup()
        await store.put("/a/2", b"2")
        await settle()
        store.server.restore(old)
        await clock.advance(1)
        for _ in range(20):
            await store.put("/elsewhere", b"x")
        await clock.advance(60)
        assert follower.condition is Frozen
        assert not follower.all(Deleted)

    following(body)


def test_emptied_and_record_gone_is_frozen_whether_it_is_seen_live_or_later() -> None:
    async def body(clock: FakeClock, store: MemoryStore, follower: Follower) -> None:
        other = MemoryStore(clock, server=store.server)
        async with Follower(other.watch("/a/")) as cut_off:
            await settle()
            other.down()
            await store.delete(keyspace.CLUSTER)
            await store.delete("/a/1")
            other.up()
            await clock.advance(5)
            for each in (follower, cut_off):
                assert each.condition is Frozen
                assert each.state == {"/a/1": b"1"}
            await store.put(keyspace.CLUSTER, b"{}")  # set up anew is not the one of before
            await clock.advance(30)
            assert follower.condition is cut_off.condition is Frozen
        await other.close()

    following(body)


def test_an_ordinary_prefix_may_become_empty() -> None:
    async def body(clock: FakeClock, store: MemoryStore, follower: Follower) -> None:
        await store.delete("/a/1")
        await settle()
        assert follower.changes == [Deleted("/a/1", b"1")]
        store.down()
        await clock.advance(5)
        store.up()
        await clock.advance(5)
        assert follower.condition is Synced

    following(body)


def test_two_programs_on_one_server() -> None:
    async def body(clock: FakeClock, store: MemoryStore, follower: Follower) -> None:
        other = MemoryStore(clock, server=store.server)
        lease = await other.grant(10)
        await other.put("/a/other", b"x", lease=lease.id)
        await clock.advance(60)
        assert not lease.lost
        assert "/a/other" in follower.state
        other.down()
        await clock.advance(9)
        assert "/a/other" in follower.state
        await clock.advance(4.4)  # at most a third of the lease was spent when it was cut off
        assert "/a/other" not in follower.state
        assert "no keep-alive was answered for 10 s" in await lease.wait_lost()
        await other.close()

    following(body)


def test_the_server_stopped_and_started() -> None:
    async def body(clock: FakeClock, store: MemoryStore, follower: Follower) -> None:
        lease = await store.grant(10)
        await store.put("/a/mine", b"x", lease=lease.id)
        store.server.stop()
        await clock.advance(8)
        assert not lease.lost
        store.server.start()
        await clock.advance(60)
        assert not lease.lost
        store.server.stop()
        store.server.start(leases_expired=True)  # as after a long freeze
        await clock.advance(5)
        assert "does not know lease" in await lease.wait_lost()
        assert Deleted("/a/mine", b"x") in follower.changes

    following(body)


# --- lease --------------------------------------------------------------------------------------------------------------


def test_a_keep_alive_that_hangs_does_not_outlive_the_lease() -> None:
    async def main() -> None:
        clock = FakeClock()
        asked = 0

        async def hang(_: int) -> None:
            nonlocal asked
            asked += 1
            await asyncio.Event().wait()

        async def unexpected(_: int) -> None:
            raise AssertionError("a lost lease is not revoked")

        lease = KeptLease(1, 9.0, clock.monotonic(), clock=clock, ask=hang, revoke=unexpected)
        await clock.advance(8.9)
        assert not lease.lost
        assert asked == 1
        await clock.advance(0.2)
        assert await lease.wait_lost() == "no keep-alive was answered for 9 s"
        await settle()
        assert not lease.kept

    run_clean(main())


def test_time_counts_from_when_the_last_answered_keep_alive_was_sent() -> None:
    async def main() -> None:
        clock = FakeClock()
        answering = True

        async def slow(_: int) -> None:
            await clock.sleep(2)
            if not answering:
                raise StoreUnavailableError("gone")

        lease = KeptLease(1, 9.0, clock.monotonic(), clock=clock, ask=slow, revoke=slow)
        await clock.advance(5.0)  # sent at 3, answered at 5
        answering = False
        await clock.advance(6.9)  # 11.9
        assert not lease.lost
        await clock.advance(0.2)
        assert "no keep-alive" in await lease.wait_lost()

    run_clean(main())


def test_a_keeper_that_fails_loses_its_lease(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        clock = FakeClock()

        async def broken(_: int) -> None:
            raise ZeroDivisionError

        lease = KeptLease(1, 9.0, clock.monotonic(), clock=clock, ask=broken, revoke=broken)
        await clock.advance(3.1)
        assert "failed, see the log" in await lease.wait_lost()
        assert "ZeroDivisionError" in caplog.text

    run_clean(main())


# --- the twin's own faults ------------------------------------------------------------------------------------------------


def test_orders_to_the_twin() -> None:
    async def main() -> None:
        store = MemoryStore(FakeClock())
        store.lose_next_answer()
        with pytest.raises(OutcomeUnknownError):
            await store.txn([], [PutOp("/1", b"x")])
        assert await store.get("/1") is not None
        store.lose_next_answer()
        await store.put("/2", b"x")
        store.fail_next(StoreFullError("full"))
        with pytest.raises(StoreFullError):
            await store.get("/2")
        assert await store.get("/2") is not None
        store.server.fill()
        with pytest.raises(StoreFullError):
            await store.put("/2", b"y")
        with pytest.raises(StoreFullError):
            await store.grant(1)
        assert await store.delete("/2")
        store.server.free()
        await store.put("/2", b"y")
        store.down("cut off by the test")
        with pytest.raises(StoreUnavailableError, match="cut off by the test"):
            await store.range("/")
        await store.close()

    run_clean(main())


def test_the_failing_twin() -> None:
    async def main() -> None:
        store = FailingStore()
        calls: list[Coroutine[Any, Any, object]] = [
            store.get("a"),
            store.range("a"),
            store.put("a", b""),
            store.delete("a"),
            store.txn([], []),
            store.grant(1),
        ]
        for call in calls:
            with pytest.raises(StoreError, match="no member answered"):
                await call
        async with _closing(store.watch("/")) as watch:
            assert isinstance(await anext(watch), Stale)
            waiting = asyncio.ensure_future(anext(watch))
            await settle()
            assert not waiting.done()
            waiting.cancel()
            await asyncio.wait({waiting})
        await store.close()

    run_clean(main())


@asynccontextmanager
async def _closing(watch: AsyncGenerator[Change, None]) -> AsyncGenerator[AsyncGenerator[Change, None], None]:
    try:
        yield watch
    finally:
        await watch.aclose()


# --- test tools -----------------------------------------------------------------------------------------------------------


def test_fake_clock_wakes_sleepers_in_order_at_their_time() -> None:
    async def main() -> None:
        clock = FakeClock(monotonic=100.0)
        woken: list[tuple[str, float]] = []

        async def sleeper(name: str, *naps: float) -> None:
            for nap in naps:
                await clock.sleep(nap)
                woken.append((name, clock.monotonic()))

        tasks = [asyncio.ensure_future(sleeper("a", 2, 2, 10)), asyncio.ensure_future(sleeper("b", 3, 0))]
        await clock.advance(5)
        assert woken == [("a", 102), ("b", 103), ("b", 103), ("a", 104)]
        assert (clock.monotonic(), clock.sleepers) == (105, 1)
        before = clock.wall()
        clock.set_wall(before - 3600)
        assert (clock.wall(), clock.monotonic()) == (before - 3600, 105)
        with pytest.raises(ValueError, match="does not go back"):
            await clock.advance(-1)
        tasks[0].cancel()
        await asyncio.wait(tasks)
        await clock.advance(20)
        assert len(woken) == 4

    run_clean(main())


def test_eventually_reports_what_it_saw_last() -> None:
    async def main() -> None:
        with pytest.raises(AssertionError, match="still waiting for two; the last value was 0"):
            await eventually(lambda: 0, within=0.05, what="two")
        with pytest.raises(AssertionError, match="raised ZeroDivisionError") as caught:
            await eventually(lambda: 1 // 0, within=0.05, what="two")
        assert isinstance(caught.value.__cause__, ZeroDivisionError)

        async def hang() -> int:
            await asyncio.Event().wait()
            return 1

        with pytest.raises(AssertionError, match="raised TimeoutError"):
            await eventually(hang, within=0.05, what="two")

        async def two() -> int:
            return 2

        assert await eventually(two, within=1, what="two") == 2

    run_clean(main())
    with pytest.raises(AssertionError, match="the last value was ''"):
        wait_until(lambda: "", within=0.05, what="two")
    assert wait_until(lambda: "x", within=1, what="x") == "x"


def test_done_within_leaves_the_future_alone() -> None:
    async def main() -> None:
        clock = FakeClock()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = asyncio.ensure_future(done_within(clock, future, 5))
        await clock.advance(5)
        assert await waiting is False
        assert not future.done()
        assert await done_within(clock, future, 0) is False
        waiting = asyncio.ensure_future(done_within(clock, future, 5))
        await settle()
        waiting.cancel()
        await asyncio.wait({waiting})
        assert waiting.cancelled()
        assert not future.cancelled()
        future.set_result(None)
        assert await done_within(clock, future, 0) is True
        assert clock.sleepers == 0

    run_clean(main())
