"""Several agents in one test process that run replicas over all of their nodes, on one store in memory.

::

    async with gang(tmp_path, 2) as nodes:
        await nodes.wish(fake_wish("m"))
        head, worker = await nodes.all_in("Ready")
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from llmgw_base.etcd.api import Put
from llmgw_proto import keyspace
from llmgw_proto.records import AssignmentRecord, ShardRecord, ShardRole
from llmgw_testing.agent_harness import WITHIN, AgentHarness
from llmgw_testing.memserver import MemoryServer
from llmgw_testing.memstore import MemoryStore
from llmgw_testing.wait import eventually

REPLICA = "m-1"


class GangNodes:
    def __init__(self, agents: list[AgentHarness], server: MemoryServer) -> None:
        self.agents, self.server = agents, server

    @property
    def names(self) -> list[str]:
        return [agent.node for agent in self.agents]

    def parts(self, wish: AssignmentRecord) -> list[AssignmentRecord]:
        """One for each node, as the leader writes them."""
        roles = [ShardRole.HEAD, *[ShardRole.WORKER] * (len(self.agents) - 1)]
        return [
            wish.model_copy(update={"shard": f"{wish.replica}.{rank}", "rank": rank, "role": role, "peers": self.names})
            for rank, role in enumerate(roles)
        ]

    async def wish(self, wish: AssignmentRecord) -> None:
        for agent, part in zip(self.agents, self.parts(wish), strict=True):
            await agent.wish(part)

    async def unwish(self, replica: str = REPLICA) -> None:
        for rank, agent in enumerate(self.agents):
            await agent.unwish(f"{replica}.{rank}")

    async def all(self, fits: Callable[[ShardRecord], bool], what: str) -> list[ShardRecord]:
        """Waits until the records of all members fit at once."""

        async def look() -> list[ShardRecord] | None:
            records = [await agent.record(f"{REPLICA}.{rank}") for rank, agent in enumerate(self.agents)]
            found = [record for record in records if record is not None and fits(record)]
            return found if len(found) == len(records) else None

        found = await eventually(look, within=WITHIN, what=f"all members to be {what}")
        assert found is not None
        return found

    async def ready(self, attempt: int) -> list[ShardRecord]:
        """Waits until all run in this attempt, and the head has an endpoint."""

        def fits(record: ShardRecord) -> bool:
            return record.state == "Ready" and record.gang is not None and record.gang.attempt == attempt

        found = await self.all(fits, f"Ready in attempt {attempt}")
        assert await self.agents[0].endpoint(REPLICA) is not None
        return found

    async def told(self, rank: int, fits: Callable[[ShardRecord], bool]) -> ShardRecord:
        """Waits until the member's record fits, if only for a moment."""
        agent, record = self.agents[rank], None
        key = keyspace.shard(agent.node, f"{REPLICA}.{rank}")
        async with asyncio.timeout(WITHIN), contextlib.aclosing(agent.store.watch(key)) as changes:
            async for change in changes:
                if isinstance(change, Put):
                    record = ShardRecord.decode(change.value)
                    if fits(record):
                        return record
        raise AssertionError(f"the watch ended; last seen: {record}")

    async def updated(self, rank: int, before: ShardRecord) -> None:
        """Waits until the member's agent said something since."""
        await self.told(rank, lambda record: record.updated_at > before.updated_at)

    async def nothing_left(self) -> None:
        for rank, agent in enumerate(self.agents):
            await agent.nothing_left(f"{REPLICA}.{rank}", REPLICA)

    def engines(self) -> list[list[int]]:
        """Pids of the first processes of the engines, by rank."""
        return [agent.engines(f"{REPLICA}.{rank}") for rank, agent in enumerate(self.agents)]


@contextlib.asynccontextmanager
async def gang(root: Path, size: int, **settings: Any) -> AsyncIterator[GangNodes]:
    """``settings`` are those of :class:`AgentHarness`; the link test is off unless they switch it on."""
    server = MemoryServer(MemoryStore().clock)
    engines = {"stop_seconds": 3, "hang_seconds": 2, "on_stop": "keep", "gang": {"link_test": False}}
    engines |= settings.pop("engines", {})
    async with contextlib.AsyncExitStack() as stack:
        agents = [AgentHarness(root / f"n{rank}", server=server, engines=engines, **settings) for rank in range(size)]
        for agent in agents:
            await stack.enter_async_context(agent)
        yield GangNodes(agents, server)
