"""Coordinators inside the test's event loop, on a store in memory and a clock that the test moves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from llmgw_base.etcd.api import PutOp
from llmgw_coordinator.leader.election import Election
from llmgw_coordinator.leader.loop import Reconciler
from llmgw_coordinator.planner import Plan, Settings, World, plan
from llmgw_coordinator.specs import Specs
from llmgw_coordinator.state import Mirror
from llmgw_proto import keyspace
from llmgw_proto.records import (
    AliveRecord,
    AssignmentRecord,
    CoordinatorRecord,
    InventoryRecord,
    ModelSpec,
    ShardRecord,
    ShardState,
)
from llmgw_testing.clock import FakeClock, settle
from llmgw_testing.memserver import MemoryServer
from llmgw_testing.memstore import MemoryStore
from llmgw_testing.worlds import SETTINGS, node, shard_of

TTL = 15.0


@dataclass
class Coordinator:
    """Its parts, running."""

    id: str
    store: MemoryStore
    mirror: Mirror
    election: Election
    reconciler: Reconciler
    specs: Specs

    @property
    def leads(self) -> bool:
        return self.election.term is not None


@dataclass
class Cluster:
    """A store, a clock, coordinators, and a hand that writes as agents and operators do."""

    clock: FakeClock
    server: MemoryServer

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.server = MemoryServer(self.clock)
        self.hand = MemoryStore(self.clock, server=self.server)

    def candidate(self, name: str) -> tuple[MemoryStore, Election]:
        """Not running yet."""
        store = MemoryStore(self.clock, server=self.server)
        record = CoordinatorRecord(id=name, address=f"http://{name}:7080", version="0", started_at=0.0)
        return store, Election(store, self.clock, record, TTL)

    @contextlib.asynccontextmanager
    async def coordinator(
        self, name: str = "c1", *, settings: Settings = SETTINGS, planner: Callable[[World], Plan] = plan
    ) -> AsyncIterator[Coordinator]:
        store, election = self.candidate(name)
        mirror = Mirror(store, self.clock)
        reconciler = Reconciler(store, mirror, election, self.clock, settings, cluster_name="test", planner=planner)
        tasks = [asyncio.create_task(each) for each in (mirror.run(), election.run(), reconciler.run())]
        await settle()
        try:
            yield Coordinator(name, store, mirror, election, reconciler, Specs(store))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await store.close()

    async def live(self, seconds: float = 1.0) -> None:
        """Lets time pass, in small steps as far as timers are concerned."""
        await self.clock.advance(seconds)

    # --- what agents and operators write -----------------------------------------------------------------------------------

    async def add_node(self, name: str, **facts: object) -> None:
        """``facts`` as of :func:`llmgw_testing.worlds.node`."""
        inventory = node(name, **facts).inventory  # type: ignore[arg-type]  # passed on
        assert isinstance(inventory, InventoryRecord)
        await self.hand.put(keyspace.inventory(name), inventory.encode())
        await self.come_alive(name)

    async def come_alive(self, name: str) -> None:
        alive = AliveRecord(node=name, version="0", started_at=0.0, pid=1, grpc_address="127.0.0.1:1")
        await self.hand.put(keyspace.alive(name), alive.encode())

    async def vanish(self, name: str) -> None:
        await self.hand.delete(keyspace.alive(name))

    async def apply(self, spec: ModelSpec) -> None:
        await self.hand.put(keyspace.model(spec.name), spec.encode())

    async def assigned(self, model: str | None = None) -> dict[str, list[AssignmentRecord]]:
        """By node, as etcd has it."""
        found: dict[str, list[AssignmentRecord]] = {}
        for item in (await self.hand.range(keyspace.ASSIGNMENTS)).items:
            record = AssignmentRecord.decode(item.value)
            if model in (None, record.model):
                found.setdefault(keyspace.split(item.key, keyspace.ASSIGNMENTS)[0], []).append(record)
        return found

    async def replicas(self, model: str | None = None) -> list[AssignmentRecord]:
        return [record for records in (await self.assigned(model)).values() for record in records]

    async def report(
        self, name: str, wish: AssignmentRecord, state: ShardState = ShardState.READY, **fields: object
    ) -> ShardRecord:
        record = shard_of(name, wish, state, **fields)
        await self.hand.put(keyspace.shard(name, wish.shard), record.encode())
        return record

    async def agents(self) -> None:
        """Every agent makes its node match what is assigned to it."""
        wished = {(name, each.shard): each for name, records in (await self.assigned()).items() for each in records}
        for item in (await self.hand.range(keyspace.SHARDS)).items:
            name, shard = keyspace.split(item.key, keyspace.SHARDS)
            if (name, shard) not in wished:
                await self.hand.delete(item.key)
        for (name, _), each in wished.items():
            await self.report(name, each)

    async def write_raw(self, key: str, value: bytes) -> None:
        await self.hand.txn([], [PutOp(key, value)])
