"""Agents that run one replica together: real processes of a fake engine, a store in memory."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from llmgw_agent.process.home import Home
from llmgw_agent.shard.connections import open_connections
from llmgw_agent.shard.context import Context
from llmgw_agent.shard.engine import Outcome, outcome_of
from llmgw_agent.shard.recover import Found
from llmgw_agent.shard.runner import Runner
from llmgw_agent.shard.supervisor import Supervisor
from llmgw_base.clock import Clock
from llmgw_base.etcd.api import Deleted, Put
from llmgw_base.secrets import engine_key
from llmgw_proto import keyspace
from llmgw_proto.records import EndpointRecord, GangPhase, ShardRecord
from llmgw_testing.agent_harness import SECRET, WITHIN, fake_wish
from llmgw_testing.follower import Follower
from llmgw_testing.gang import REPLICA, gang
from llmgw_testing.wait import eventually


def test_a_replica_over_two_nodes_lives_and_ends_as_one(tmp_path: Path) -> None:
    async def body() -> None:
        async with gang(tmp_path, 2) as nodes:
            await nodes.wish(fake_wish())
            head, worker = await nodes.ready(1)
            assert (head.rank, worker.rank) == (0, 1)
            assert head.port is not None
            assert worker.port is None, "it serves no requests"
            assert head.gang is not None
            assert head.gang.port not in (0, head.port), "where the members meet is another port than that for requests"
            assert await nodes.agents[1].endpoint(REPLICA) is None, "only the head has an endpoint"
            await nodes.unwish()
            await nodes.nothing_left()

    asyncio.run(body())


def test_the_death_of_either_engine_restarts_both(tmp_path: Path) -> None:
    async def body() -> None:
        async with gang(tmp_path, 2) as nodes:
            await nodes.wish(fake_wish())
            first = await nodes.ready(1)
            assert first[1].pid is not None
            os.kill(first[1].pid, signal.SIGKILL)
            second = await nodes.ready(2)
            assert [record.restarts for record in second] == [1, 1]
            assert not {record.pid for record in first} & {record.pid for record in second}
            assert second[0].pid is not None
            os.kill(second[0].pid, signal.SIGKILL)
            third = await nodes.ready(3)
            assert not {record.pid for record in second} & {record.pid for record in third}
            assert [len(pids) for pids in nodes.engines()] == [1, 1]

    asyncio.run(body())


def test_the_head_tells_what_happened_on_the_other_node(tmp_path: Path) -> None:
    async def body() -> None:
        async with gang(tmp_path, 3) as nodes, Follower(nodes.agents[0].store.watch(keyspace.SHARDS)) as follower:
            await nodes.wish(fake_wish())
            first = await nodes.ready(1)
            assert first[2].pid is not None
            os.kill(first[2].pid, signal.SIGKILL)
            second = await nodes.ready(2)
            assert not {record.pid for record in first} & {record.pid for record in second}
            told = [ShardRecord.decode(put.value) for put in follower.all(Put)]
            notes = {record.rank: record.gang.note for record in told if record.gang is not None and record.gang.note}
            killed = "the engine was killed by SIGKILL, most likely by the kernel because memory ran out"
            assert f"node {nodes.names[2]}: {killed}" in notes[0]
            assert any(record.rank == 0 and record.state == "Failed" and killed in record.reason for record in told)
            assert killed in notes[2]
            assert f"attempt 1 was ended: node {nodes.names[0]}: " in notes[1]

    asyncio.run(body())


def test_an_agent_that_is_killed_finds_its_part_again(tmp_path: Path) -> None:
    async def body() -> None:
        async with gang(tmp_path, 2) as nodes:
            await nodes.wish(fake_wish())
            before = await nodes.ready(1)
            for rank, agent in enumerate(nodes.agents):
                await agent.crash()
                await agent.start()
                await nodes.updated(rank, before[rank])
                after = await nodes.ready(1)
                assert [record.pid for record in after] == [record.pid for record in before]
            assert [len(pids) for pids in nodes.engines()] == [1, 1]

            # What it finds dead after its return ends the attempt on all nodes.
            await nodes.agents[1].crash()
            assert before[1].pid is not None
            os.kill(before[1].pid, signal.SIGKILL)
            await nodes.agents[1].start()
            last = await nodes.ready(2)
            assert last[0].pid != before[0].pid

    asyncio.run(body())


def test_the_head_names_whom_it_waits_for_and_gives_up_for_a_while(tmp_path: Path) -> None:
    async def body() -> None:
        patience = {"gang": {"link_test": False, "wait_seconds": 0.5}}
        async with gang(tmp_path, 2, engines=patience, restart={"attempts": 1000, "first_delay": 0.2}) as nodes:
            head, worker = nodes.agents
            parts = nodes.parts(fake_wish())
            await head.wish(parts[0])
            missing = f"waits for node {worker.node} (has said nothing of it)"
            failed = await nodes.told(0, lambda record: record.state == "Failed" and missing in record.reason)
            assert "nothing new was heard for 0.5 s" in failed.reason
            await worker.wish(parts[1])
            await nodes.all(lambda record: record.state == "Ready", "Ready")

    asyncio.run(body())


def test_what_is_rejected_on_one_node_is_rejected(tmp_path: Path) -> None:
    async def body() -> None:
        async with gang(tmp_path, 2) as nodes:
            parts = nodes.parts(fake_wish())
            await nodes.agents[0].wish(parts[0])
            await nodes.agents[1].wish(parts[1].model_copy(update={"command": ["no-such-program", "{port}"]}))
            head, worker = await nodes.all(lambda record: record.state == "Rejected", "Rejected")
            assert "no-such-program" in worker.reason
            assert head.reason == f"node {nodes.names[1]}: {worker.reason}"
            # The model is applied again, with a program that is there.
            await nodes.wish(fake_wish(generation=1))
            await nodes.all(lambda record: record.state == "Ready", "Ready")

    asyncio.run(body())


def test_workers_stay_until_the_head_has_drained(tmp_path: Path) -> None:
    async def body() -> None:
        async with gang(tmp_path, 2) as nodes, Follower(nodes.agents[0].store.watch(keyspace.SHARDS)) as follower:
            await nodes.wish(fake_wish("m", "--tokens", "4", script="slow", drain_seconds=20.0))
            await nodes.ready(1)
            endpoint = await nodes.agents[0].endpoint(REPLICA)
            assert endpoint is not None
            body = {"model": endpoint.served_name, "messages": [{"role": "user", "content": "x"}]}
            headers = {"Authorization": f"Bearer {engine_key(SECRET, REPLICA, 1)}"}
            async with aiohttp.ClientSession() as session:
                asked = asyncio.create_task(_post(session, endpoint.url, body, headers))
                await eventually(lambda: open_connections(_port(endpoint.url)) > 0, within=WITHIN, what="the request to run")
                # The worker hears of it first.
                await nodes.agents[1].unwish(f"{REPLICA}.1")
                await nodes.told(1, lambda record: record.state == "Draining")
                await nodes.agents[0].unwish(f"{REPLICA}.0")
                assert await asked == 200
            await nodes.nothing_left()
            gone = [change.key for change in follower.all(Deleted)]
            assert gone == [keyspace.shard(name, f"{REPLICA}.{rank}") for rank, name in enumerate(nodes.names)]

    asyncio.run(body())


def test_a_new_epoch_replaces_all(tmp_path: Path) -> None:
    async def body() -> None:
        async with gang(tmp_path, 2) as nodes:
            await nodes.wish(fake_wish())
            first = await nodes.ready(1)
            await nodes.wish(fake_wish(epoch=2))
            second = await nodes.all(lambda record: record.epoch == 2 and record.state == "Ready", "Ready in epoch 2")
            assert not {record.pid for record in first} & {record.pid for record in second}
            assert [len(pids) for pids in nodes.engines()] == [1, 1]

    asyncio.run(body())


def test_etcd_away_ends_nothing(tmp_path: Path) -> None:
    async def body() -> None:
        async with gang(tmp_path, 2) as nodes:
            await nodes.wish(fake_wish())
            first = await nodes.ready(1)
            nodes.server.stop()
            # An agent that comes back meanwhile does not know of the others, and goes on as well.
            await nodes.agents[1].crash()
            await nodes.agents[1].start()
            nodes.server.start()
            await nodes.updated(1, first[1])
            again = await nodes.ready(1)
            assert [record.pid for record in again] == [record.pid for record in first]

    asyncio.run(body())


def test_a_link_that_is_too_slow_is_named_with_both_ends(tmp_path: Path) -> None:
    async def body() -> None:
        slow = {"gang": {"link_seconds": 0.1, "minimum_gbps": 1e6}}
        async with gang(tmp_path, 2, engines=slow) as nodes:
            await nodes.wish(fake_wish())
            failed = await nodes.told(0, lambda record: record.state == "Failed" and "Gb/s" in record.reason)
            a, b = nodes.names
            assert f"the link from node {a} (127.0.0.1) to node {b} (127.0.0.1) gives " in failed.reason
            assert "less than engines.gang.minimum_gbps = 1e+06" in failed.reason
            assert nodes.engines() == [[], []], "nothing was started"

    asyncio.run(body())


async def _post(session: aiohttp.ClientSession, url: str, body: dict[str, Any], headers: dict[str, str]) -> int:
    async with session.post(url + "/v1/chat/completions", json=body, headers=headers) as answer:
        await answer.read()
        return answer.status


def _port(url: str) -> int:
    return int(url.rpartition(":")[2])


def test_a_wish_that_goes_and_comes_back_at_once_unsettles_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made: list[Supervisor] = []

    def supervisor(context: Context, found: Found) -> Supervisor:
        made.append(Supervisor(context, found))
        return made[-1]

    monkeypatch.setattr("llmgw_agent.app.Supervisor", supervisor)
    became: list[str] = []
    became_ready = Runner._became_ready

    def counted(self: Runner, endpoint: EndpointRecord) -> None:
        became_ready(self, endpoint)
        became.append(self.shard)

    monkeypatch.setattr(Runner, "_became_ready", counted)

    async def body() -> None:
        async with gang(tmp_path, 2) as nodes:
            await nodes.wish(fake_wish())
            before = await nodes.ready(1)
            for rank in (1, 0):
                shard = f"{REPLICA}.{rank}"
                worker = next(found for each in made if (found := each.worker(shard)) is not None)
                assert worker.runner is not None
                # Both before the worker's task can look.
                wish = worker.runner.wish
                worker.gone()
                worker.wish(wish, SECRET)
            await eventually(lambda: len(became) == 2, within=WITHIN, what="the head to go on")
            assert worker.runner is not None
            assert worker.runner.ledger.saved.timings == before[0].timings, "it was not started and needs no probe"
            assert before[0].pid is not None
            os.kill(before[0].pid, signal.SIGKILL)
            await nodes.ready(2)
            assert "fault in the worker" not in caplog.text

    asyncio.run(body())


def test_the_death_of_a_worker_is_told_before_it_is_known_how_it_died(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        told = asyncio.Event()

        async def slow(home: Home, status: int | None, clock: Clock) -> Outcome:
            await told.wait()
            return await outcome_of(home, status, clock)

        monkeypatch.setattr("llmgw_agent.shard.engine.outcome_of", slow)
        async with gang(tmp_path, 2) as nodes:
            await nodes.wish(fake_wish())
            _, worker = await nodes.ready(1)
            assert worker.pid is not None
            os.kill(worker.pid, signal.SIGKILL)
            try:
                await nodes.told(1, lambda record: record.gang is not None and record.gang.phase is GangPhase.DOWN)
            finally:
                told.set()
            await nodes.ready(2)

    asyncio.run(body())
