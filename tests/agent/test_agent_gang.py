"""Agents that run one replica together: real processes of a fake engine, a store in memory."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from llmgw_testing.agent_harness import fake_wish
from llmgw_testing.gang import REPLICA, gang


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
