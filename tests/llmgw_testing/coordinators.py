"""Coordinators inside the test's event loop, on a store in memory and a clock that the test moves."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from yarl import URL

from llmgw_base.clock import Clock
from llmgw_base.etcd.api import PutOp
from llmgw_coordinator.api.context import Context
from llmgw_coordinator.api.server import Guard, all_routes, make_app, with_document
from llmgw_coordinator.api.throttle import Throttle
from llmgw_coordinator.api.tokens import TokenCheck
from llmgw_coordinator.leader.election import Election
from llmgw_coordinator.leader.loop import Reconciler
from llmgw_coordinator.metrics import Metrics
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


TOKEN = "a-token-for-tests-only"


@dataclass
class Admin:
    """The admin API of a coordinator, and a client that has the token."""

    http: TestClient[web.Request, web.Application]
    metrics: Metrics

    async def ask(self, method: str, path: str, body: object = None, *, token: str | None = TOKEN, **more: Any) -> Answer:
        headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        # The path is sent as it is written: org%2Fmodel must not become org/model on its way.
        url = URL(path, encoded=True)
        async with self.http.request(method, url, json=body, headers=headers | more.pop("headers", {}), **more) as response:
            text = await response.text()
            return Answer(response.status, json.loads(text) if "json" in response.content_type else text, response.headers)


@dataclass
class Answer:
    status: int
    body: Any
    headers: Mapping[str, str]

    @property
    def error(self) -> str:
        """The error's code."""
        return str(self.body["error"]["code"])


@contextlib.asynccontextmanager
async def admin_of(coordinator: Coordinator, clock: Clock, *, failures_per_minute: int = 10) -> AsyncIterator[Admin]:
    metrics = Metrics()
    context = Context(
        coordinator.store, coordinator.mirror, coordinator.election, coordinator.reconciler, coordinator.specs, clock
    )
    guard = Guard(TokenCheck(TOKEN), Throttle(failures_per_minute), clock)
    app = make_app(with_document(all_routes(context, metrics, None)), guard, context, metrics.requests)
    server = TestServer(app, handler_cancellation=True)
    async with TestClient(server) as client:
        yield Admin(client, metrics)
