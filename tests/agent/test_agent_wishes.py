"""Changes of the store, turned into wishes and removals."""

from __future__ import annotations

import asyncio

import pytest

from llmgw_agent.membership import objection, occupant
from llmgw_agent.wishes import WishTable, follow
from llmgw_base.etcd.api import Deleted, Frozen, Put, Stale, Synced
from llmgw_proto import keyspace
from llmgw_proto.records import AliveRecord, AssignmentRecord, ClusterRecord, CpuFacts, InventoryRecord, MemoryFacts
from llmgw_testing.clock import FakeClock, settle
from llmgw_testing.memstore import MemoryStore


class Sink:
    def __init__(self) -> None:
        self.heard: list[str] = []

    def wish(self, assignment: AssignmentRecord) -> None:
        self.heard.append(f"wish {assignment.shard} {assignment.epoch}")

    def gone(self, shard: str) -> None:
        self.heard.append(f"gone {shard}")

    def complete(self, shards: set[str]) -> None:
        self.heard.append(f"complete {' '.join(sorted(shards))}".strip())

    def take(self) -> list[str]:
        heard, self.heard = self.heard, []
        return heard


def value(shard: str, epoch: int = 1) -> bytes:
    return AssignmentRecord(shard=shard, replica="r", model="m", epoch=epoch, engine="command").encode()


def put(shard: str, epoch: int = 1, data: bytes | None = None) -> Put:
    return Put(keyspace.assignment("n", shard), data if data is not None else value(shard, epoch), 1, None)


def gone(shard: str) -> Deleted:
    return Deleted(keyspace.assignment("n", shard), b"")


def test_wishes_are_passed_on_at_once_and_removals_when_the_list_is_whole() -> None:
    sink = Sink()
    table = WishTable("n", sink)
    for change in (put("a"), put("b", 2), Synced(1), gone("a")):
        table.apply(change)
    assert sink.take() == ["wish a 1", "wish b 2", "complete a b", "gone a"]


@pytest.mark.parametrize("trouble", [Stale("silent"), Frozen("another store")])
def test_nothing_is_removed_while_the_store_is_not_trusted(trouble: Stale | Frozen) -> None:
    sink = Sink()
    table = WishTable("n", sink)
    for change in (put("a"), put("b"), Synced(1)):
        table.apply(change)
    sink.take()
    table.apply(trouble)
    table.apply(gone("a"))
    assert sink.take() == []
    table.apply(Synced(2))
    assert sink.take() == ["complete b"]


def test_an_unreadable_wish_is_no_wish_to_stop() -> None:
    sink = Sink()
    table = WishTable("n", sink)
    table.apply(put("a", data=b"{"))
    table.apply(put("b", data=value("c")))
    table.apply(Synced(1))
    assert sink.take() == ["complete a b"]


def test_a_wiped_store_removes_nothing() -> None:
    async def body() -> None:
        clock = FakeClock()
        store = MemoryStore(clock)
        sink = Sink()
        await store.put(keyspace.assignment("n", "a"), value("a"))
        task = asyncio.create_task(follow(store, "n", sink))
        await settle()
        assert sink.take() == ["wish a 1", "complete a"]
        store.wipe()
        await clock.advance(30)
        assert sink.take() == []
        await store.put(keyspace.assignment("n", "b"), value("b"))
        await store.delete(keyspace.assignment("n", "b"))
        await clock.advance(30)
        assert not [heard for heard in sink.take() if heard == "gone a"]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await store.close()

    asyncio.run(body())


def cluster(cluster_id: str = "c", schema: int = 1) -> ClusterRecord:
    return ClusterRecord(id=cluster_id, name="name", created_at=0, schema_version=schema, engine_secret="00" * 32)


def test_only_the_own_cluster_is_obeyed() -> None:
    assert objection(cluster(), None, "F") is None
    assert objection(cluster(), "c", "F") is None
    assert "holds no cluster yet" in (objection(None, None, "F") or "")
    assert "holds no cluster yet" in (objection(None, "c", "F") or "")
    other = objection(cluster("d"), "c", "/x/cluster") or ""
    assert "holds cluster d (name), this agent belongs to c" in other
    assert "delete /x/cluster" in other
    assert "update the agent" in (objection(cluster(schema=2), None, "F") or "")


def test_two_hosts_must_not_share_a_name() -> None:
    alive = AliveRecord(node="n", version="1", started_at=0, pid=1, grpc_address="h:1")
    facts = {"cpu": CpuFacts(cores=1), "memory": MemoryFacts(total_bytes=1)}
    inventory = InventoryRecord(node="n", version="1", boot_id="theirs", hostname="other", **facts)
    assert "node n is alive as host other (h:1); two hosts must not share a name" in (
        occupant("n", inventory, alive, "mine") or ""
    )
    assert occupant("n", inventory, alive, "theirs") is None, "an earlier life of this agent"
    assert occupant("n", inventory, None, "mine") is None, "its host is gone"
    assert occupant("n", None, None, "mine") is None
