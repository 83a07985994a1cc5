"""Logs of replicas, relayed from their agents."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import aiohttp
import pytest

from llmgw_base.clock import SystemClock
from llmgw_base.secrets import agent_token
from llmgw_coordinator.api import agents, logs, relay
from llmgw_proto import keyspace
from llmgw_proto.records import AliveRecord, ClusterRecord
from llmgw_testing.coordinators import TOKEN, Admin, Cluster, admin_of
from llmgw_testing.log_agent import LogAgent, log_agent
from llmgw_testing.wait import eventually
from llmgw_testing.worlds import model, profile

SECRET = "ab" * 32
HEADERS = {"Authorization": f"Bearer {TOKEN}"}


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[tuple[Cluster, LogAgent, Admin, str]]:
    """The path of a replica's log, too."""
    cluster = Cluster()
    await cluster.add_node("n1")
    record = ClusterRecord(id="i", name="test", created_at=0.0, engine_secret=SECRET)
    await cluster.hand.put(keyspace.CLUSTER, record.encode())
    await cluster.apply(model("m"))
    async with (
        log_agent(agent_token(SECRET, "n1")) as agent,
        cluster.coordinator() as coordinator,
        admin_of(coordinator, SystemClock()) as admin,
    ):
        alive = AliveRecord(node="n1", version="0", started_at=0.0, pid=1, grpc_address=agent.address)
        await cluster.hand.put(keyspace.alive("n1"), alive.encode())
        await cluster.live()
        (wish,) = await cluster.replicas()
        yield cluster, agent, admin, f"/admin/v1/replicas/{wish.replica}/logs"


def test_the_last_lines_are_relayed_as_they_are() -> None:
    async def test() -> None:
        async with serving() as (_, agent, admin, path):
            agent.lines = [f"line {each} é\x1b[1m\n" for each in range(500)]
            answer = await admin.ask("GET", path)
            assert answer.status == 200
            assert answer.headers["Content-Type"].startswith("text/plain")
            assert answer.body == "".join(agent.lines[-100:])
            assert (await admin.ask("GET", path + "?tail=2")).body == "".join(agent.lines[-2:])
            assert (agent.requests[0].tail, agent.requests[0].follow) == (100, False)

    asyncio.run(test())


def test_what_is_wanted_of_a_log_goes_to_the_agent_and_nonsense_does_not() -> None:
    async def test() -> None:
        async with serving() as (_, agent, admin, path):
            agent.lines = ["a\n"]
            assert (await admin.ask("GET", path + "?tail=5&since=1700000000.5&grep=a%7Cb&file=suspect")).status == 200
            wanted = agent.requests[-1]
            assert (wanted.tail, wanted.since, wanted.grep, wanted.file) == (5, 1700000000.5, "a|b", "suspect")
            for since in ("x", "-1", "nan", "inf"):
                answer = await admin.ask("GET", path + f"?since={since}")
                assert (answer.status, answer.error) == (422, "invalid")
            agent.refusal = "'(' is no regular expression that can be used: unclosed group"
            answer = await admin.ask("GET", path + "?grep=(")
            assert (answer.status, answer.body["error"]["message"]) == (422, agent.refusal)

    asyncio.run(test())


def test_an_empty_log_is_an_empty_answer() -> None:
    async def test() -> None:
        async with serving() as (_, _, admin, path):
            answer = await admin.ask("GET", path)
            assert (answer.status, answer.body) == (200, "")

    asyncio.run(test())


def test_following_brings_lines_as_they_come_and_ends_at_the_agent_when_the_client_leaves() -> None:
    async def test() -> None:
        async with serving() as (_, agent, admin, path):
            agent.lines = ["old\n"]
            async with admin.http.get(path + "?follow=1", headers=HEADERS) as response:
                assert response.status == 200
                assert await response.content.readline() == b"old\n"
                for word in ("new", "newer"):
                    agent.more.put_nowait(f"{word}\n")
                    assert await response.content.readline() == f"{word}\n".encode()
                assert not agent.cancelled.is_set()
                response.close()
            async with asyncio.timeout(10):
                await agent.cancelled.wait()

    asyncio.run(test())


def test_a_log_that_is_followed_begins_although_nothing_is_in_it_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "FIRST_CHUNK_WAIT", 0.05)

    async def test() -> None:
        async with serving() as (_, agent, admin, path):
            async with asyncio.timeout(10):
                response = await admin.http.get(path + "?follow=1", headers=HEADERS)
            agent.more.put_nowait("first\n")
            assert await response.content.readline() == b"first\n"
            response.close()
            await eventually(agent.cancelled.is_set, within=10, what="the call to end")

    asyncio.run(test())


def test_an_agent_that_cannot_be_reached_is_a_502_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "CONNECT_LIMIT", 0.3)

    async def test() -> None:
        async with serving() as (cluster, _, admin, path):
            alive = AliveRecord(node="n1", version="0", started_at=0.0, pid=1, grpc_address="127.0.0.1:1")
            await cluster.hand.put(keyspace.alive("n1"), alive.encode())
            await cluster.live()
            answer = await admin.ask("GET", path)
            assert (answer.status, answer.error) == (502, "agent_unreachable")
            assert "node n1" in answer.body["error"]["message"]
            assert "llmgw-agent" in answer.body["error"]["remedy"]
            await cluster.vanish("n1")
            await cluster.live()
            assert (await admin.ask("GET", path)).error == "agent_unreachable"

    asyncio.run(test())


def test_an_agent_that_refuses_is_a_502_and_never_shows_the_token() -> None:
    async def test() -> None:
        async with serving() as (cluster, _, admin, path):
            other = ClusterRecord(id="i", name="test", created_at=0.0, engine_secret="cd" * 32)
            await cluster.hand.put(keyspace.CLUSTER, other.encode())
            await cluster.live()
            answer = await admin.ask("GET", path)
            assert (answer.status, answer.error) == (502, "agent_unreachable")
            assert "unauthenticated" in answer.body["error"]["message"]
            assert agent_token("cd" * 32, "n1") not in str(answer.body)

    asyncio.run(test())


def test_a_log_that_breaks_off_does_not_look_complete() -> None:
    async def test() -> None:
        async with serving() as (_, agent, admin, path):
            agent.lines = ["one\n", "two\n"]
            agent.break_after_first = True
            with pytest.raises(aiohttp.ClientError):
                async with admin.http.get(path, headers=HEADERS) as response:
                    await response.read()

    asyncio.run(test())


def test_a_log_of_a_node_that_is_gone_is_not_followed_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "LOOK_EVERY", 0.05)

    async def test() -> None:
        async with serving() as (cluster, agent, admin, path):
            agent.lines = ["one\n"]
            async with admin.http.get(path + "?follow=1", headers=HEADERS) as response:
                assert await response.content.readline() == b"one\n"
                # Its connections stay as they are, as those of a host without power do.
                await cluster.vanish("n1")
                await cluster.live()
                async with asyncio.timeout(30):
                    with pytest.raises(aiohttp.ClientError):
                        await response.read()

    asyncio.run(test())


def test_unknown_replicas_and_odd_numbers_are_refused() -> None:
    async def test() -> None:
        async with serving() as (_, agent, admin, path):
            assert (await admin.ask("GET", "/admin/v1/replicas/nope/logs")).error == "replica_not_found"
            for query in (
                "tail=-1",
                "tail=x",
                "tail=99999999999",
                "tail=",
                "follow=2",
                "follow=yes",
                "tail=%D9%A1",
                f"tail={'9' * 5000}",
            ):
                answer = await admin.ask("GET", f"{path}?{query}")
                assert (answer.status, answer.error) == (422, "invalid"), query
            assert agent.requests == []

    asyncio.run(test())


def test_the_log_of_each_shard_is_asked_of_its_own_node() -> None:
    async def test() -> None:
        async with serving() as (cluster, first, admin, _), log_agent(agent_token(SECRET, "n2")) as second:
            await cluster.add_node("n2")
            await cluster.hand.delete(keyspace.model("m"))
            await cluster.live(5)
            await cluster.apply(model("pair", 1, profile(nodes=2)))
            alive = AliveRecord(node="n2", version="0", started_at=0.0, pid=1, grpc_address=second.address)
            await cluster.hand.put(keyspace.alive("n2"), alive.encode())
            await cluster.live(5)
            shards = {one.rank: (name, one) for name, records in (await cluster.assigned()).items() for one in records}
            agents = {"n1": first, "n2": second}
            path = f"/admin/v1/replicas/{shards[0][1].replica}/logs"
            for query, rank in (("", 0), ("?rank=0", 0), ("?rank=1", 1)):
                name, wish = shards[rank]
                await admin.ask("GET", path + query)
                assert agents[name].requests.pop().shard == wish.shard
            answer = await admin.ask("GET", path + "?rank=2")
            assert (answer.status, answer.error) == (404, "shard_not_found")
            assert "has no shard of rank 2, only 0, 1" in answer.body["error"]["message"]
            assert (await admin.ask("GET", path + "?rank=x")).status == 422
            assert first.requests == second.requests == []

    asyncio.run(test())
