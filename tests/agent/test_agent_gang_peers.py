"""What a member hears of the others, and what it must not conclude."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from llmgw_agent.shard.gang.peers import Peers
from llmgw_base.etcd.errors import StoreUnavailableError
from llmgw_proto import keyspace
from llmgw_proto.records import ClusterRecord, GangPhase, GangState, ShardRecord, ShardState
from llmgw_testing.memstore import MemoryStore
from llmgw_testing.wait import eventually

WITHIN = 30.0


def record(rank: int, attempt: int) -> ShardRecord:
    return ShardRecord(
        shard=f"m-1.{rank}",
        replica="m-1",
        model="m",
        node="b",
        epoch=1,
        state=ShardState.STARTING,
        engine="vllm",
        updated_at=0.0,
        rank=rank,
        gang=GangState(attempt=attempt, phase=GangPhase.STARTED),
    )


KEY = keyspace.shard("b", "m-1.1")


async def no_objection() -> str | None:
    return None


def attempt_of(peers: Peers) -> int | None:
    found = peers[1].record
    return found.gang.attempt if found is not None and found.gang is not None else None


@asynccontextmanager
async def following(store: MemoryStore) -> AsyncIterator[Peers]:
    await store.put(keyspace.CLUSTER, ClusterRecord(id="c", name="c", created_at=0.0, engine_secret="5e").encode())
    peers = Peers(store, store.clock, no_objection, "m-1", {1: "b"})
    async with peers.following():
        await eventually(lambda: peers.known, within=WITHIN, what="the first list")
        yield peers


def test_a_record_that_comes_changes_and_goes_is_heard_of() -> None:
    async def body() -> None:
        store = MemoryStore()
        async with following(store) as peers:
            assert (peers[1].record, peers[1].known) == (None, True)
            heard = asyncio.create_task(peers.news())
            await asyncio.sleep(0)
            # Its key begins with the other's.
            await store.put(keyspace.shard("b", "m-1.10"), record(10, 7).encode())
            await store.put(KEY, record(1, 1).encode())
            await asyncio.wait_for(heard, WITHIN)
            assert attempt_of(peers) == 1
            await store.delete(KEY)
            await eventually(lambda: peers[1].record is None, within=WITHIN, what="the record to be gone")
        await store.close()

    asyncio.run(body())


def test_what_cannot_be_read_is_not_gone() -> None:
    async def body() -> None:
        store = MemoryStore()
        await store.put(KEY, b"?")
        peers = Peers(store, store.clock, no_objection, "m-1", {1: "b"})
        heard = asyncio.create_task(peers.news())
        async with peers.following():
            await asyncio.wait_for(heard, WITHIN)
            assert (peers[1].record, peers[1].known) == (None, False)
            await store.put(KEY, record(1, 1).encode())
            await eventually(lambda: attempt_of(peers) == 1, within=WITHIN, what="the record")
            heard = asyncio.create_task(peers.news())
            await asyncio.sleep(0)
            await store.put(KEY, b"?")
            await asyncio.wait_for(heard, WITHIN)
            assert attempt_of(peers) == 1
        await store.close()

    asyncio.run(body())


def test_etcd_away_and_another_store_change_nothing() -> None:
    async def body() -> None:
        store = MemoryStore()
        await store.put(KEY, record(1, 1).encode())
        async with following(store) as peers:
            store.down()
            await asyncio.wait_for(peers.news(0.05), WITHIN)
            assert attempt_of(peers) == 1
            store.up()
            await store.put(KEY, record(1, 2).encode())
            await eventually(lambda: attempt_of(peers) == 2, within=WITHIN, what="the next attempt")
            # All data is lost: the watch freezes instead of telling of a deletion.
            store.wipe()
            await asyncio.wait_for(peers.news(0.05), WITHIN)
            assert attempt_of(peers) == 2
        await store.close()

    asyncio.run(body())


def test_a_store_that_is_not_the_agents_own_is_not_believed() -> None:
    async def body() -> None:
        store, doubts = MemoryStore(), ["another cluster"]

        async def objection() -> str | None:
            if len(doubts) == 1:
                doubts.append("asked")
                raise StoreUnavailableError("no member answered (test)")
            return doubts[0] or None

        peers = Peers(store, store.clock, objection, "m-1", {1: "b"})
        async with peers.following():
            await eventually(lambda: len(doubts) == 2, within=WITHIN, what="the question")
            await asyncio.wait_for(peers.news(0.05), WITHIN)
            assert not peers.known
            doubts[0] = ""
            await eventually(lambda: peers.known, within=WITHIN, what="the first list")
        await store.close()

    asyncio.run(body())
