"""The client against real servers that are killed, frozen, cut off, filled up, wiped and restored."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from llmgw_base.clock import SystemClock
from llmgw_base.config import EtcdSection
from llmgw_base.etcd.api import CreateRevisionIs, Deleted, Frozen, PutOp, Snapshot, Stale, Synced
from llmgw_base.etcd.calls import CALL_TIMEOUT, PATIENCE
from llmgw_base.etcd.client import EtcdStore
from llmgw_base.etcd.errors import (
    CompactedError,
    OutcomeUnknownError,
    StoreFullError,
    StoreUnavailableError,
    StoreUnsuitableError,
)
from llmgw_base.etcd.kv import KV
from llmgw_base.etcd.stream import EtcdSource
from llmgw_proto import keyspace
from llmgw_testing.etcd_server import EtcdServer, Series, etcd_cluster, free_port, trial_binary
from llmgw_testing.follower import Follower
from llmgw_testing.scenario import on_both, run_clean
from llmgw_testing.tcp_proxy import TcpProxy
from llmgw_testing.wait import eventually

CLOCK = SystemClock()
#: "Within 2 s after the store is back", on a machine that does other things too.
SOON = 20.0


@asynccontextmanager
async def opened(*endpoints: str) -> AsyncIterator[EtcdStore]:
    store = EtcdStore(EtcdSection(endpoints=list(endpoints)), CLOCK)
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def proxied(server: EtcdServer) -> AsyncIterator[tuple[EtcdStore, TcpProxy, EtcdStore]]:
    """A store behind a proxy, the proxy, and a second store that speaks to the server directly."""
    async with (
        TcpProxy(server.port) as proxy,
        opened(f"http://127.0.0.1:{proxy.port}") as store,
        opened(server.endpoint) as direct,
    ):
        yield store, proxy, direct


# --- unreachable members ------------------------------------------------------------------------------------------------


def test_other_endpoints_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first refuses, the second takes connections and never answers; nothing of it is seen but a delay."""
    monkeypatch.setattr("llmgw_base.etcd.client.random.shuffle", lambda members: None)

    async def main() -> None:
        with EtcdServer("3.5") as server:
            async with TcpProxy(server.port) as hole:
                hole.blackhole()
                endpoints = (f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{hole.port}", server.endpoint)
                async with opened(*endpoints) as store:
                    assert not await store.txn([CreateRevisionIs("/a/1", 1)], [])  # never sent to a dead one
                    began = time.monotonic()
                    async with Follower(store.watch("/a/")) as follower:
                        await follower.synced()
                        await store.put("/a/1", b"x")
                        await follower.until(lambda: follower.state, what="the put")
                        assert not follower.all(Stale)
                    assert time.monotonic() - began < CALL_TIMEOUT  # it stays with the one that answered

    run_clean(main())


def test_starting_while_etcd_is_down() -> None:
    async def main() -> None:
        server = EtcdServer("3.5")
        try:
            async with opened(server.endpoint) as store, Follower(store.watch("/a/")) as follower:
                with pytest.raises(StoreUnavailableError, match=r"get /a/1: no member answered .*refused.*etcd\.endpoints"):
                    await store.get("/a/1")
                await follower.until(lambda: follower.condition is Stale, what="Stale")
                with pytest.raises(StoreUnavailableError):
                    await store.check()
                began = time.monotonic()
                with pytest.raises(StoreUnavailableError):
                    await store.put("/a/1", b"x")
                assert time.monotonic() - began < PATIENCE / 2  # known to be away: said at once
                server.start()
                await follower.synced(within=SOON)
                assert len(follower.all(Stale)) == 1
                await store.check()
        finally:
            server.close()

    run_clean(main())


def test_a_killed_member_of_three_is_replaced_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmgw_base.etcd.client.random.shuffle", lambda members: None)

    async def main() -> None:
        with etcd_cluster("3.5") as servers:
            async with opened(*(server.endpoint for server in servers)) as store, Follower(store.watch("/a/")) as follower:
                await store.check()
                await store.put("/a/1", b"1")
                lease = await store.grant(10)
                await follower.until(lambda: follower.state, what="the put")
                servers[0].kill()

                async def put() -> bool:
                    await store.put("/a/2", b"2", lease=lease.id)
                    return True

                # An election may be needed meanwhile, and take longer than a call is patient.
                await eventually(put, within=SOON, what="a put to one of the others")
                await follower.until(lambda: len(follower.state) == 2, what="the put after the kill", within=SOON)
                assert not follower.all(Deleted)

                servers[2].kill()  # no quorum: the one that is left, and watched, must not pretend
                await follower.until(lambda: follower.condition is Stale, what="Stale without a quorum", within=15)
                with pytest.raises(StoreUnavailableError):
                    await store.get("/a/1")
                servers[0].start()
                await follower.until(lambda: follower.condition is Synced, what="sync with a quorum", within=20)

                async def again() -> bool:
                    await store.put("/a/3", b"3")
                    return True

                await eventually(again, within=SOON, what="a put with a quorum")
                await follower.until(lambda: len(follower.state) == 3, what="the last put", within=SOON)
                await lease.abandon()

    run_clean(main())


# --- lost answers -------------------------------------------------------------------------------------------------------


def test_a_put_whose_answer_is_lost_is_sent_again() -> None:
    async def main() -> None:
        with EtcdServer("3.5") as server:
            async with proxied(server) as (store, proxy, direct):
                await store.put("/a/1", b"0")
                proxy.hold_answers()
                putting = asyncio.ensure_future(store.put("/a/1", b"1"))
                await eventually(lambda: _value(direct, "/a/1", b"1"), within=SOON, what="the write whose answer is held")
                proxy.cut()
                proxy.heal()
                await putting
                item = await direct.get("/a/1")
                assert item is not None
                assert (item.value, item.mod_revision) == (b"1", 4)  # written twice, harmlessly

                proxy.hold_answers()
                deleting = asyncio.ensure_future(store.delete("/a/1"))
                await eventually(lambda: _value(direct, "/a/1", None), within=SOON, what="the deletion whose answer is held")
                proxy.cut()
                proxy.heal()
                assert await deleting is True

    run_clean(main())


def test_a_transaction_whose_answer_is_lost_is_not_sent_again() -> None:
    async def main(series: Series) -> None:
        with EtcdServer(series) as server:
            async with proxied(server) as (store, proxy, direct):
                await store.put("/a/1", b"0")
                proxy.hold_answers()
                transacting = asyncio.ensure_future(store.txn([], [PutOp("/a/1", b"1")]))
                await eventually(lambda: _value(direct, "/a/1", b"1"), within=SOON, what="the write whose answer is held")
                proxy.cut()
                proxy.heal()
                with pytest.raises(OutcomeUnknownError, match=r"transaction on /a/1: .*it may have been done or not"):
                    await transacting
                # and the same when nobody cuts the connection: the time limit does
                await store.get("/a/1")
                proxy.hold_answers()
                with pytest.raises(OutcomeUnknownError):
                    await store.txn([], [PutOp("/a/1", b"2")])
                proxy.heal()
                assert await store.txn([], [PutOp("/a/2", b"0")])
                item = await direct.get("/a/1")
                assert item is not None
                assert (item.value, item.mod_revision) == (b"2", 4)

    on_both(main)


async def _value(store: EtcdStore, key: str, value: bytes | None) -> bool:
    item = await store.get(key)
    return (item.value if item is not None else None) == value


# --- lists --------------------------------------------------------------------------------------------------------------


def test_long_lists_are_of_one_revision() -> None:
    """Two keys that are always written together never differ in a list, however many pages it takes."""

    async def main(series: Series) -> None:
        with EtcdServer(series, unix=True) as server:
            async with opened(server.endpoint) as store:
                for page in range(13):
                    keys = [f"/a/{page:02}-{number:03}" for number in range(100)]
                    await store.txn([], [PutOp(key, b"x" * 100) for key in keys])
                busy = True

                async def write() -> None:
                    number = 0
                    while busy:
                        number += 1
                        value = b"%d" % number
                        await store.txn([], [PutOp("/a/00-000", value), PutOp("/a/12-099", value)])

                writing = asyncio.ensure_future(write())
                try:
                    values = set()
                    for _ in range(30):
                        snapshot = await store.range("/a/")
                        assert len(snapshot.items) == 1300
                        first, last = snapshot.items[0], snapshot.items[-1]
                        assert (first.key, last.key) == ("/a/00-000", "/a/12-099")
                        assert first.value == last.value
                        assert max(item.mod_revision for item in snapshot.items) <= snapshot.revision
                        values.add(first.value)
                    assert len(values) > 5  # it did change meanwhile
                finally:
                    busy = False
                    await writing

    on_both(main)


def test_streams_from_impossible_revisions() -> None:
    """One that was compacted says so at once. One that lies in the future (the data was lost between list and watch, or the
    member lags behind) would wait in silence for ever; progress requests find it out.
    """

    async def main(series: Series) -> None:
        with EtcdServer(series, unix=True) as server:
            async with opened(server.endpoint) as store:
                for number in range(5):
                    revision = await store.put("/a/1", b"%d" % number)
                server.ctl("compact", str(revision))
                cluster_id = (await store.range("/a/")).cluster_id
                source = EtcdSource(store._caller, KV(store._caller), CLOCK)
                with pytest.raises(CompactedError):
                    async with source.follow("/a/", Snapshot((), 1, cluster_id)) as stream:
                        await stream.next(time.monotonic() + 10)
                with pytest.raises(StoreUnavailableError, match="is at revision 6, but revision 1000 was seen"):
                    async with source.follow("/a/", Snapshot((), 1000, cluster_id)) as stream:
                        await stream.next(time.monotonic() + 10)
                with pytest.raises(StoreUnavailableError, match="different clusters"):
                    async with source.follow("/a/", Snapshot((), revision, cluster_id + 1)):
                        pass
                async with source.follow("/a/", Snapshot((), revision, cluster_id)) as stream:
                    assert await stream.next(time.monotonic() + 0.2) is None
                    await store.put("/a/1", b"last")
                    events = await stream.next(time.monotonic() + 10)
                    assert events is not None
                    assert events[0].value == b"last"

    on_both(main)


# --- leases -------------------------------------------------------------------------------------------------------------


def test_a_server_frozen_for_longer_than_the_lease() -> None:
    async def main(series: Series) -> None:
        with EtcdServer(series) as server:
            async with opened(server.endpoint) as store, Follower(store.watch("/a/")) as follower:
                lease = await store.grant(1)
                await store.put("/a/1", b"x", lease=lease.id)
                await follower.until(lambda: follower.state, what="the key")
                server.sigstop()
                reason = await asyncio.wait_for(lease.wait_lost(), 15)
                assert "no keep-alive was answered for 1 s" in reason
                await asyncio.sleep(1.5)
                server.sigcont()
                await follower.until(lambda: Deleted("/a/1", b"x") in follower.changes, what="the loss", within=SOON)
                assert lease.lost
                again = await store.grant(1)
                await store.put("/a/1", b"y", lease=again.id)
                await follower.until(lambda: follower.state == {"/a/1": b"y"}, what="the new key")
                await again.revoke()

    on_both(main)


def test_the_server_says_that_a_lease_is_gone() -> None:
    async def main() -> None:
        with EtcdServer("3.5") as server:
            async with opened(server.endpoint) as store:
                lease = await store.grant(3)
                server.ctl("lease", "revoke", f"{lease.id:x}")
                reason = await asyncio.wait_for(lease.wait_lost(), 15)
                assert "does not know lease" in reason
                await lease.revoke()

    run_clean(main())


def test_a_restarted_server_keeps_keys_leases_and_watches() -> None:
    async def main(series: Series) -> None:
        with EtcdServer(series) as server:
            async with opened(server.endpoint) as store, Follower(store.watch("/a/")) as follower:
                lease = await store.grant(30)
                await store.put("/a/lease", b"x", lease=lease.id)
                await follower.until(lambda: follower.state, what="the key")
                for number in range(3):
                    server.kill()
                    await follower.until(lambda: follower.condition is Stale, what="Stale", within=2.0 + SOON)
                    server.start()
                    for each in "abcd":
                        await store.put(f"/a/{each}", b"%d" % number)
                    await follower.synced(number + 2, within=SOON)
                    expected = {"/a/lease": b"x"} | {f"/a/{each}": b"%d" % number for each in "abcd"}
                    await follower.until(lambda: follower.state == expected, what="all four", within=SOON)  # noqa: B023  awaited in the same turn
                assert not follower.all(Deleted)
                assert not lease.lost
                await lease.revoke()

    on_both(main)


# --- watches ------------------------------------------------------------------------------------------------------------


def test_changes_and_a_compaction_while_cut_off() -> None:
    async def main(series: Series) -> None:
        with EtcdServer(series) as server:
            async with proxied(server) as (store, proxy, direct), Follower(store.watch("/a/")) as follower:
                for each in "abc":
                    await direct.put(f"/a/{each}", b"1")
                await follower.until(lambda: len(follower.state) == 3, what="three keys")
                proxy.refuse()
                await follower.until(lambda: follower.condition is Stale, what="Stale", within=2.0 + SOON)
                await direct.delete("/a/a")
                await direct.put("/a/b", b"2")
                await direct.put("/a/c", b"2")
                revision = await direct.put("/a/c", b"1")
                server.ctl("compact", str(revision))
                follower.changes.clear()
                proxy.heal()
                await follower.synced(within=SOON)
                assert [(type(change).__name__, getattr(change, "key", "")) for change in follower.changes] == [
                    ("Deleted", "/a/a"),
                    ("Put", "/a/b"),
                    ("Synced", ""),  # and nothing of c, which has the value it had
                ]
                await direct.put("/a/d", b"1")
                await follower.until(lambda: "/a/d" in follower.state, what="a key after it")

    on_both(main)


def test_a_dead_connection_is_found_out() -> None:
    """No FIN, no RST, no packet: only silence."""

    async def main(series: Series) -> None:
        with EtcdServer(series) as server:
            async with proxied(server) as (store, proxy, direct), Follower(store.watch("/a/")) as follower:
                await follower.synced()
                await direct.put("/a/0", b"x")
                await follower.until(lambda: follower.state, what="the stream to be there")
                began = time.monotonic()
                proxy.blackhole()
                await direct.put("/a/1", b"x")
                await follower.until(lambda: follower.condition is Stale, what="Stale", within=10)  # gRPC alone would take 13 s
                assert time.monotonic() - began > 1
                proxy.heal()
                await follower.synced(2, within=SOON)
                assert follower.state == {"/a/0": b"x", "/a/1": b"x"}

    on_both(main)


def test_a_slow_connection_is_no_dead_one() -> None:
    async def main() -> None:
        with EtcdServer("3.5") as server:
            async with proxied(server) as (store, proxy, _), Follower(store.watch("/a/")) as follower:
                await follower.synced()
                proxy.delay = 0.25  # half a second there and back
                await store.put("/a/1", b"x")
                lease = await store.grant(5)
                await asyncio.sleep(3)
                await follower.until(lambda: follower.state == {"/a/1": b"x"}, what="the put")
                assert not follower.all(Stale)
                assert not lease.lost
                await lease.abandon()

    run_clean(main())


# --- another store ------------------------------------------------------------------------------------------------------


def test_a_wiped_store_freezes_the_watch() -> None:
    async def main(series: Series) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(wiped(series, new_cluster=False))
            group.create_task(wiped(series, new_cluster=True))

    async def wiped(series: Series, *, new_cluster: bool) -> None:
        with EtcdServer(series) as server:
            async with opened(server.endpoint) as store, Follower(store.watch("/a/")) as follower:
                for number in range(5):
                    await store.put(f"/a/{number}", b"x")
                await follower.until(lambda: len(follower.state) == 5, what="the keys")
                server.kill()
                server.wipe(new_cluster=new_cluster)
                server.start()
                await follower.until(lambda: follower.condition is Frozen, what="Frozen", within=SOON)
                reason = follower.all(Frozen)[0].reason
                assert ("cluster id" if new_cluster else "revision went back from 6 to 1") in reason
                for number in range(10):  # others write, and its revision passes the one known
                    await store.put(f"/a/{number % 3}", b"%d" % number)
                await asyncio.sleep(2.5)
                assert follower.condition is Frozen
                assert len(follower.state) == 5
                assert not follower.all(Deleted)
                assert len(follower.all(Frozen)) == 1

    on_both(main)


def test_a_restored_backup_freezes_the_watch_and_the_true_store_thaws_it() -> None:
    async def main() -> None:
        with EtcdServer("3.5") as server:
            data, backup, newest = (server.folder / name for name in ("data", "backup", "newest"))
            async with opened(server.endpoint) as store, Follower(store.watch("/a/")) as follower:
                await store.put("/a/1", b"x")
                await follower.until(lambda: follower.state, what="the first key")
                server.stop()
                shutil.copytree(data, backup)
                server.start()
                await store.put("/a/2", b"x")
                await store.put("/a/3", b"x")
                await follower.until(lambda: len(follower.state) == 3, what="all keys", within=SOON)
                server.stop()
                data.rename(newest)
                backup.rename(data)
                server.start()
                await follower.until(lambda: follower.condition is Frozen, what="Frozen", within=SOON)
                for number in range(5):
                    await store.put("/elsewhere", b"%d" % number)  # its revision passes the one known; keys 2 and 3 lack
                await asyncio.sleep(2.5)
                assert follower.condition is Frozen
                assert not follower.all(Deleted)

                server.stop()
                shutil.rmtree(data)
                newest.rename(data)
                server.start()
                await follower.until(lambda: follower.condition is Synced, what="trust in the true store", within=SOON)
                assert len(follower.state) == 3
                assert not follower.all(Deleted)
                await store.delete("/a/1")
                await follower.until(lambda: follower.all(Deleted), what="an ordinary deletion")

    run_clean(main())


def test_all_keys_deleted_at_once_freezes_the_watch() -> None:
    """As by `etcdctl del "" --prefix`. A prefix alone may become empty."""

    async def main() -> None:
        with EtcdServer("3.5") as server:
            async with opened(server.endpoint) as store:
                await store.put(keyspace.CLUSTER, b"{}")
                await store.put("/a/1", b"x")
                await store.put("/b/1", b"x")
                async with Follower(store.watch("/a/")) as a, Follower(store.watch("/b/")) as b:
                    await a.synced()
                    await b.synced()
                    server.ctl("del", "/a/", "--prefix")
                    await a.until(lambda: a.all(Deleted), what="an ordinary deletion")
                    server.ctl("del", "", "--prefix")
                    await b.until(lambda: b.condition is Frozen, what="Frozen", within=SOON)
                    assert b.state == {"/b/1": b"x"}
                    assert a.condition is Synced

    run_clean(main())


# --- out of space, unfit versions -----------------------------------------------------------------------------------------


def test_out_of_space() -> None:
    async def main(series: Series) -> None:
        with EtcdServer(series, flags=["--quota-backend-bytes=1000000"]) as server:
            async with opened(server.endpoint) as store, Follower(store.watch("/a/")) as follower:
                lease = await store.grant(2)
                await store.put("/a/lease", b"x", lease=lease.id)
                with pytest.raises(StoreFullError, match=r"put /a/.*space exceeded; compact and defragment"):
                    for _ in range(100):
                        revision = await store.put("/a/big", b"x" * 100_000)
                with pytest.raises(StoreFullError):
                    await store.txn([], [PutOp("/a/small", b"")])
                with pytest.raises(StoreFullError):
                    await store.grant(5)
                assert await store.get("/a/lease") is not None
                await asyncio.sleep(2.5)
                assert not lease.lost  # keep-alives go on
                assert await store.delete("/a/big")
                await follower.until(lambda: set(follower.state) == {"/a/lease"}, what="the deletion")
                server.ctl("compact", str(revision))
                server.ctl("defrag")
                server.ctl("alarm", "disarm")
                await store.put("/a/small", b"y")
                await follower.until(lambda: "/a/small" in follower.state, what="a put after the alarm")
                await lease.revoke()

    on_both(main)


def test_versions_with_known_faults_are_for_trials_only(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        with EtcdServer(binary=trial_binary()) as server:
            section = server.section()
            with pytest.raises(StoreUnsuitableError, match=r"is version 3\.5\.1: .*13766.*use 3\.5\.16 or newer"):
                await EtcdStore.connect(section, clock=CLOCK)
            async with opened(server.endpoint) as refusing, Follower(refusing.watch("/a/")) as follower:
                with pytest.raises(StoreUnsuitableError):
                    await refusing.put("/a/1", b"x")
                await follower.until(lambda: follower.condition is Stale, what="Stale")
                assert "3.5.1" in follower.all(Stale)[0].reason
            assert "trying out only" not in caplog.text
            for trial in (
                await EtcdStore.connect(section, clock=CLOCK, trial=True),
                await EtcdStore.connect(section.model_copy(update={"trial": True}), clock=CLOCK),
            ):
                await trial.put("/a/1", b"x")
                await trial.close()
            assert caplog.text.count("is version 3.5.1, good for trying out only") == 2

    run_clean(main())
