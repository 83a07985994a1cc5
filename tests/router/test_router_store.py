"""The source of endpoints and the router's own record, against a store in memory."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from llmgw_base.clock import SystemClock
from llmgw_base.etcd.api import Store
from llmgw_base.secrets import engine_key
from llmgw_proto import keyspace
from llmgw_proto.records import ClusterRecord, EndpointRecord, RouterRecord
from llmgw_router import policies
from llmgw_router.account.figures import Counter, Family, family_of
from llmgw_router.account.workers import Workers, ask
from llmgw_router.admission.queue import WaitQueue
from llmgw_router.config import HealthSection
from llmgw_router.health.outlier import Rules
from llmgw_router.health.watch import wants_probe
from llmgw_router.ops.health import Health, Source
from llmgw_router.publish import Publisher
from llmgw_router.table.directory import Directory, ModelState
from llmgw_router.table.etcd import EtcdSource
from llmgw_router.table.replica import Replica
from llmgw_router.table.spec import Address, EndpointSpec
from llmgw_testing.memstore import MemoryStore
from llmgw_testing.wait import eventually

SECRET = "cd" * 32
CLUSTER = ClusterRecord(id="c", name="c", created_at=0, engine_secret=SECRET).encode()


async def holds(check: Callable[[], bool]) -> None:
    await eventually(check, within=10, what="the source to follow the store")


def record(replica: str, **more: object) -> bytes:
    values = {
        "replica": replica,
        "node": "n",
        "model": "m",
        "epoch": 1,
        "url": "http://h:1",
        "served_name": "m",
        "capabilities": ["chat"],
    }
    return EndpointRecord.model_validate(values | more).encode()


def key(replica: str) -> str:
    return keyspace.endpoint("n", replica)


class Setup:
    def __init__(self, state_dir: Path | None = None) -> None:
        def model(name: str, wanted: str | None) -> ModelState:
            chosen = policies.make("least_loaded", policies.Settings(random.Random(1)))
            return ModelState(name, chosen, "least_loaded", WaitQueue(5))

        self.store = MemoryStore()
        self.directory = Directory(model, Rules(), lambda _: None)
        self.state = Source()
        self.health = Health(self.directory, self.state, SystemClock().monotonic, "1")
        self.source = EtcdSource(
            self.directory, self.state, SystemClock(), keep_seconds=60, probe_seconds=6, state_dir=state_dir
        )
        self.source.warm()

    @property
    def served(self) -> list[str]:
        return [each.id for each in self.directory.table.replicas]

    async def connect(self) -> Store:
        return self.store

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.source.run(self.connect))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await self.store.close()


def test_endpoints_are_followed_and_keys_derived() -> None:
    async def run() -> None:
        it = Setup()
        assert it.health.answer(b"/health")[0] == 503
        await it.store.put(keyspace.CLUSTER, CLUSTER)
        await it.store.put(key("a"), record("a"))
        async with it.running():
            await holds(lambda: it.served == ["a"])
            assert it.directory.table.replicas[0].spec.key == engine_key(SECRET, "a", 1)
            assert it.health.answer(b"/health")[0] == 200
            await it.store.put(key("b"), record("b"))
            await holds(lambda: it.served == ["a", "b"])
            await it.store.put(key("a"), record("a", draining=True))
            await holds(lambda: it.directory.table.replicas[0].spec.draining)
            await it.store.delete(key("a"))
            await holds(lambda: it.served == ["b"])

    asyncio.run(run())


def test_not_ready_before_there_is_a_cluster() -> None:
    async def run() -> None:
        it = Setup()
        async with it.running():
            await holds(lambda: "cluster" in it.health.not_ready())
            await it.store.put(keyspace.CLUSTER, CLUSTER)
            await holds(lambda: it.health.not_ready() == "")

    asyncio.run(run())


def test_vanished_endpoint_is_doubted_until_it_is_found_dead() -> None:
    async def run() -> None:
        it = Setup()
        await it.store.put(keyspace.CLUSTER, CLUSTER)
        for name in ("a", "b"):
            await it.store.put(key(name), record(name))
        async with it.running():
            await holds(lambda: it.served == ["a", "b"])
            await it.store.delete(key("a"))
            await holds(lambda: it.directory.table.replicas[0].spec.vanished)
            vanished = it.directory.table.replicas[0]
            assert [each.id for each in it.directory.table.groups["m", "chat"].usable] == ["b"]
            it.source.vanished_dead(vanished)
            assert it.served == ["b"]

    asyncio.run(run())


def test_a_store_that_is_away_leaves_the_table_and_says_so() -> None:
    async def run() -> None:
        it = Setup()
        await it.store.put(keyspace.CLUSTER, CLUSTER)
        await it.store.put(key("a"), record("a"))
        async with it.running():
            await holds(lambda: it.served == ["a"] and it.state.stale_since is None)
            it.store.down()
            await holds(lambda: it.state.stale_since is not None)
            assert it.served == ["a"]
            status, body = it.health.answer(b"/health")
            assert status == 200
            assert b'"stale":true' in body
            it.store.up()
            await holds(lambda: it.state.stale_since is None)

    asyncio.run(run())


def test_cold_start_from_disk(tmp_path: Path) -> None:
    async def run() -> None:
        first = Setup(tmp_path)
        await first.store.put(keyspace.CLUSTER, CLUSTER)
        await first.store.put(key("a"), record("a"))
        async with first.running():
            await holds(lambda: (tmp_path / "endpoints.json").exists())
        second = Setup(tmp_path)
        assert second.served == ["a"]
        assert second.health.not_ready() == ""
        assert second.state.stale_since is not None

    asyncio.run(run())


def test_models_without_a_replica_are_known() -> None:
    async def run() -> None:
        it = Setup()
        await it.store.put(keyspace.CLUSTER, CLUSTER)
        await it.store.put(keyspace.model("org/m"), b"{}")
        async with it.running():
            await holds(lambda: it.directory.table.declared == {"org/m"})
            await it.store.delete(keyspace.model("org/m"))
            await holds(lambda: not it.directory.table.declared)

    asyncio.run(run())


def test_record_that_cannot_be_read_is_skipped() -> None:
    async def run() -> None:
        it = Setup()
        await it.store.put(keyspace.CLUSTER, CLUSTER)
        await it.store.put(key("bad"), b"not json")
        await it.store.put(key("worse"), record("worse", url="gopher://h"))
        await it.store.put(key("good"), record("good"))
        async with it.running():
            await holds(lambda: it.served == ["good"])

    asyncio.run(run())


def test_own_record_is_written_under_a_lease_and_withdrawn() -> None:
    async def run() -> None:
        store = MemoryStore()
        running = Counter("llmgw_router_model_running", "", ["m"])
        running.add(("m",), 2)

        async def gather() -> list[Family]:
            return [family_of(running)]

        publisher = Publisher(store, SystemClock(), gather, router_id="r1", address="http://r", version="1")
        task = asyncio.create_task(publisher.run())
        written = await eventually(lambda: store.get(keyspace.router("r1")), within=10, what="the router's record")
        assert written is not None
        assert RouterRecord.decode(written.value).models["m"].running == 2
        assert written.lease
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await publisher.withdraw()
        assert await store.get(keyspace.router("r1")) is None
        await store.close()

    asyncio.run(run())


def test_workers_add_up_whoever_answers(tmp_path: Path) -> None:
    async def run() -> None:
        def figures(amount: float) -> list[Family]:
            counter = Counter("c", "help", ["m"])
            counter.add(("m",), amount)
            return [family_of(counter)]

        workers = [Workers(tmp_path, index, lambda index=index: figures(index + 1)) for index in range(3)]  # type: ignore[misc]  # bound now
        for worker in workers:
            await worker.start()
        assert [each.samples for each in await workers[0].gather()] == [[(("m",), [6.0])]]
        await workers[1].stop()
        assert [each.samples for each in await workers[2].gather()] == [[(("m",), [4.0])]]
        assert await ask(tmp_path / "1.sock") is None
        for worker in (workers[0], workers[2]):
            await worker.stop()

    asyncio.run(run())


def test_who_is_probed() -> None:
    rules = HealthSection(silent_seconds=2)
    replica = Replica(EndpointSpec("a", Address("h", 1), ("m",)))
    replica.last_byte = 100
    assert not wants_probe(replica, 200, rules, probe_all=False), "nothing is asked of it"
    assert wants_probe(replica, 200, rules, probe_all=True)
    replica.load = 1
    assert not wants_probe(replica, 101, rules, probe_all=False)
    assert wants_probe(replica, 103, rules, probe_all=False), "silent"
    replica.load = 0
    replica.health.failure(0, Rules(), decisive=False)
    assert wants_probe(replica, 101, rules, probe_all=False), "suspect"


def test_table_is_kept_on_disk_under_constant_change(tmp_path: Path) -> None:
    def kept() -> bool:
        return any(tmp_path.iterdir())

    async def run() -> None:
        it = Setup(tmp_path)
        async with it.running():
            await it.store.put(keyspace.CLUSTER, CLUSTER)
            for number in itertools.count():
                await it.store.put(key("r"), record("r", weight=1 + number % 100))
                if kept():
                    return
                await asyncio.sleep(0.05)

    asyncio.run(asyncio.wait_for(run(), 60))
