"""Nodes that share weights, without the rest of an agent: a store, a listener and keys in a common etcd in memory."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp

from llmgw_agent.config import AgentConfig
from llmgw_agent.publisher import Publisher
from llmgw_agent.shared_weights import SharedWeights
from llmgw_agent.weights import WeightStore
from llmgw_base.clock import SystemClock
from llmgw_proto import keyspace
from llmgw_proto.records import WeightsRecord
from llmgw_testing.memserver import MemoryServer
from llmgw_testing.memstore import MemoryStore
from llmgw_testing.weights import settings

SECRET = "7a" * 32


async def _no_objection() -> str | None:
    return None


class SharingNode:
    """``weights`` is the node's store; ``etcd`` its own client of the common server."""

    weights: WeightStore

    def __init__(
        self, root: Path, name: str, server: MemoryServer, *, config: dict[str, Any] | None = None, **changes: Any
    ) -> None:
        self.name, self.root = name, root / name
        self.etcd = MemoryStore(server=server)
        base = {"node": {"name": name}, "state_dir": str(self.root), "weights": settings(**changes).model_dump(mode="json")}
        self.config = AgentConfig.model_validate(base | (config or {}))
        self._stack = contextlib.AsyncExitStack()
        self._serving = contextlib.AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        clock = SystemClock()
        self._stack.push_async_callback(self.etcd.close)
        session = await self._stack.enter_async_context(aiohttp.ClientSession())
        self.shared = SharedWeights.of(self.config, self.etcd, session, clock)
        store = WeightStore(self.root / "weights", clock=clock, settings=self.config.weights, peers=self.shared.fleet)
        self.weights = await self._stack.enter_async_context(store)
        try:
            await self._serving.enter_async_context(self.shared.serve(self.weights))
        except BaseException:
            await self._stack.aclose()
            raise
        self.publisher = Publisher(self.etcd, clock, [], 10, _no_objection)
        self.shared.join(self.publisher, SECRET)
        self._tasks = [
            asyncio.create_task(self.publisher.run(), name=f"publisher {self.name}"),
            asyncio.create_task(self.shared.run(self.weights), name=f"shared {self.name}"),
        ]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.kill()
        await self._stack.aclose()

    async def kill(self) -> None:
        """Nobody is told: the keys stay until the lease ends, the connections break."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._serving.aclose()


async def told(etcd: MemoryStore) -> dict[tuple[str, str], str]:
    """(content, node) to state, as all can read it."""
    found = (await etcd.range(keyspace.WEIGHTS)).items
    return {
        (parts[0], parts[1]): WeightsRecord.decode(each.value).state
        for each in found
        if len(parts := keyspace.split(each.key, keyspace.WEIGHTS)) == 2
    }
