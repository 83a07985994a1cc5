"""Agents of one replica as processes that are killed in the middle of its start."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from llmgw_proto.records import ShardRecord, ShardRole
from llmgw_testing.agent_harness import WITHIN, fake_wish
from llmgw_testing.agent_program import Program, program
from llmgw_testing.etcd_server import EtcdServer
from llmgw_testing.wait import eventually


@pytest.mark.parametrize(("step", "who"), [("attempt-saved", 0), ("attempt-saved", 1), ("spawned", 1)])
def test_killed_while_all_start_they_meet_in_one_attempt(tmp_path: Path, step: str, who: int) -> None:
    async def body(etcd: EtcdServer) -> None:
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
        alone = {"gang": {"link_test": False}}
        async with program(tmp_path / "a", etcd, **alone) as head, program(tmp_path / "b", etcd, **alone) as worker:
            agents = (head, worker)
            peers = [each.node for each in agents]
            for rank, agent in enumerate(agents):
                role = ShardRole.HEAD if rank == 0 else ShardRole.WORKER
                await agent.wish(fake_wish(shard=f"m-1.{rank}", rank=rank, role=role, peers=peers))
            killed = await agents[who].start(failpoint=step)
            await agents[1 - who].start()
            async with asyncio.timeout(2 * WITHIN):
                assert await killed.wait() == -signal.SIGKILL
            await agents[who].start()

            async def together() -> bool:
                return met([await agent.record(f"m-1.{rank}") for rank, agent in enumerate(agents)], agents)

            await eventually(together, within=2 * WITHIN, what="both to be Ready in one attempt, each with one engine")

    with EtcdServer("3.5") as etcd:
        asyncio.run(body(etcd))


def met(records: list[ShardRecord | None], agents: tuple[Program, ...]) -> bool:
    there = [record for record in records if record is not None and record.gang is not None and record.state == "Ready"]
    attempts = {record.gang.attempt for record in there if record.gang is not None}
    engines = [agent.engines() for agent in agents]
    return len(there) == len(agents) and len(attempts) == 1 and engines == [[record.pid] for record in there]
