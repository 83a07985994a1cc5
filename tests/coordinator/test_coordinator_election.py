"""Who leads, and for how long."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from llmgw_base.etcd.api import DeleteOp, PutOp
from llmgw_base.etcd.errors import StoreFullError
from llmgw_coordinator.errors import NotLeaderError
from llmgw_coordinator.leader.election import Election
from llmgw_coordinator.leader.fence import fenced
from llmgw_proto import keyspace
from llmgw_testing.clock import settle
from llmgw_testing.coordinators import TTL, Cluster
from llmgw_testing.memstore import MemoryStore


@contextlib.asynccontextmanager
async def running(cluster: Cluster, name: str) -> AsyncIterator[tuple[MemoryStore, Election, asyncio.Task[None]]]:
    store, election = cluster.candidate(name)
    task = asyncio.create_task(election.run())
    await settle()
    try:
        yield store, election, task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await store.close()


def test_the_oldest_candidate_leads_and_the_next_one_takes_over_at_once_when_it_steps_down() -> None:
    async def body() -> None:
        cluster = Cluster()
        async with (
            running(cluster, "a") as (_, first, _),
            running(cluster, "b") as (_, second, _),
            running(cluster, "c") as (_, third, _),
        ):
            assert [each.term is not None for each in (first, second, third)] == [True, False, False]
            await first.step_down()
            await settle()  # no time passes
            assert [each.term is not None for each in (first, second, third)] == [False, True, False]

    asyncio.run(body())


def test_who_steps_down_does_not_stand_again() -> None:
    async def body() -> None:
        cluster = Cluster()
        async with running(cluster, "a") as (_, election, _):
            await election.step_down()
            await cluster.live(3 * TTL)
            assert election.term is None
            assert await cluster.hand.get(keyspace.leader("a")) is None

    asyncio.run(body())


def test_a_coordinator_that_ends_takes_its_keys_with_it() -> None:
    async def body() -> None:
        cluster = Cluster()
        async with running(cluster, "a"):
            assert await cluster.hand.get(keyspace.coordinator("a")) is not None
        assert (await cluster.hand.range(keyspace.PREFIX)).items == ()

    asyncio.run(body())


def test_a_killed_leader_is_followed_within_its_lease() -> None:
    async def body() -> None:
        cluster = Cluster()
        async with running(cluster, "a") as (store, first, task), running(cluster, "b") as (_, second, _):
            assert first.term is not None
            store.down()  # nothing of it reaches etcd any more, not even its farewell
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await cluster.live(TTL - 1)
            assert second.term is None
            await cluster.live(3)
            assert second.term is not None

    asyncio.run(body())


def test_a_leader_cut_from_etcd_stops_by_its_own_clock_before_the_next_one_leads() -> None:
    async def body() -> None:
        cluster = Cluster()
        async with running(cluster, "a") as (store, first, _), running(cluster, "b") as (_, second, _):
            await cluster.live(1)
            term = first.term
            assert term is not None
            store.down()
            led_twice = False
            stopped_at = None
            for tenth in range(300):
                await cluster.live(0.1)
                led_twice |= first.term is not None and second.term is not None
                if first.term is None and stopped_at is None:
                    stopped_at = tenth / 10
                    with pytest.raises(NotLeaderError):
                        await fenced(store, term, [], [PutOp("/x", b"")])
            assert stopped_at is not None
            assert stopped_at <= TTL
            assert not led_twice
            assert second.term is not None

    asyncio.run(body())


def test_who_comes_back_stands_behind_the_one_that_leads_now() -> None:
    async def body() -> None:
        cluster = Cluster()
        async with running(cluster, "a") as (store, first, _), running(cluster, "b") as (_, second, _):
            store.down()
            await cluster.live(2 * TTL)
            store.up()
            await cluster.live(5)
            assert (first.term, second.term is not None) == (None, True)
            await second.step_down()
            await settle()
            assert first.term is not None

    asyncio.run(body())


def test_a_late_write_of_a_deposed_leader_is_refused() -> None:
    async def body() -> None:
        cluster = Cluster()
        async with running(cluster, "a") as (store, first, _), running(cluster, "b") as (_, second, _):
            term = first.term
            assert term is not None
            assert await fenced(store, term, [], [PutOp("/before", b"")])
            # As after a long stop of the process: the key is gone, but nothing here has noticed.
            cluster.server.txn((), (DeleteOp(term.key),), ())
            assert not term.over
            with pytest.raises(NotLeaderError):
                await fenced(store, term, [], [PutOp("/late", b"")])
            assert await cluster.hand.get("/late") is None
            assert await cluster.hand.get("/before") is not None
            await settle()
            assert second.term is not None
            assert first.term is None
            await cluster.live(5)
            assert await cluster.hand.get(keyspace.leader("a")) is not None, "it stands again"

    asyncio.run(body())


def test_two_with_one_id_never_lead_both_and_the_second_says_why_it_waits() -> None:
    async def body() -> None:
        cluster = Cluster()
        async with running(cluster, "a") as (_, first, task), running(cluster, "a") as (_, twin, _):
            await cluster.live(2 * TTL)
            assert [each.term is not None for each in (first, twin)] == [True, False]
            assert "give each host its own id" in (twin.problem or "")
            task.cancel()
            await settle()
            assert (twin.term is not None, twin.problem) == (True, None)

    asyncio.run(body())


def test_a_lost_answer_to_standing_makes_no_second_candidacy() -> None:
    async def body() -> None:
        cluster = Cluster()
        store, election = cluster.candidate("a")
        # The grant is no write of data, so the put of coordinators/a is the first write and the candidacy the second.
        original = store.txn

        async def losing(*args: object, **kwargs: object) -> bool:
            store.lose_next_answer()
            store.txn = original  # type: ignore[method-assign]  # once
            return await original(*args, **kwargs)  # type: ignore[arg-type]  # passed on

        store.txn = losing  # type: ignore[method-assign]  # a fault
        task = asyncio.create_task(election.run())
        await settle()
        assert election.term is not None
        assert len((await cluster.hand.range(keyspace.LEADER)).items) == 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await store.close()

    asyncio.run(body())


def test_trouble_at_the_start_is_tried_again() -> None:
    async def body() -> None:
        cluster = Cluster()
        store, election = cluster.candidate("a")
        store.fail_next(StoreFullError("etcd: out of space (test)"))
        task = asyncio.create_task(election.run())
        await cluster.live(5)
        assert election.term is not None
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await store.close()

    asyncio.run(body())
