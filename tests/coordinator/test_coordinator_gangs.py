"""Replicas over several nodes in etcd: every step of one is one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from llmgw_base.etcd.api import Compare, Operation, PutOp
from llmgw_coordinator.leader.apply import MOST_COMPARES, write_for
from llmgw_coordinator.planner import Assigned, Create, Delete, Move, Placed
from llmgw_coordinator.state.view import Stored, View
from llmgw_proto import keyspace
from llmgw_proto.records import AssignmentRecord, FabricMapRecord, FabricNode, ShardState
from llmgw_testing.coordinators import Cluster
from llmgw_testing.memstore import MemoryStore
from llmgw_testing.worlds import model, profile

PAIR = profile("llamacpp", nodes=2, memory="1GiB")


def test_placing_moving_and_removing_are_one_transaction_each(monkeypatch: pytest.MonkeyPatch) -> None:
    found = recorded(monkeypatch)

    async def body() -> None:
        cluster = Cluster()
        for name in ("n1", "n2", "n3"):
            await cluster.add_node(name)
        async with cluster.coordinator():
            await cluster.apply(model("m", 1, PAIR))
            await cluster.live(5)
            await cluster.agents()
            await cluster.live(5)
            replica = (await cluster.replicas())[0].replica
            assert found == [{f"+n1/{replica}.0", f"+n2/{replica}.1"}]
            found.clear()
            wish = next(each for each in await cluster.replicas() if each.rank == 1)
            await cluster.report("n2", wish, ShardState.REJECTED, reason="no room on the disk")
            await cluster.live(30)
            assert found == [{f"+n1/{replica}.0", f"-n2/{replica}.1", f"+n3/{replica}.1"}]
            assert {each.epoch for each in await cluster.replicas()} == {2}
            found.clear()
            await cluster.hand.delete(keyspace.model("m"))
            await cluster.live(5)
            assert found == [{f"-n1/{replica}.0", f"-n3/{replica}.1"}]
        await cluster.hand.close()

    asyncio.run(body())


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """What is written and deleted below assignments/, transaction by transaction."""
    found: list[set[str]] = []
    real = MemoryStore.txn

    async def txn(
        self: MemoryStore, compares: Sequence[Compare], then: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> bool:
        done = await real(self, compares, then, otherwise)
        keys = {
            ("+" if isinstance(each, PutOp) else "-") + "/".join(keyspace.split(each.key, keyspace.ASSIGNMENTS))
            for each in then
            if each.key.startswith(keyspace.ASSIGNMENTS)
        }
        if done and keys:
            found.append(keys)
        return done

    monkeypatch.setattr(MemoryStore, "txn", txn)
    return found


def test_a_wish_that_someone_deleted_is_repaired_by_the_next_epoch() -> None:
    async def body() -> None:
        cluster = Cluster()
        for name in ("n1", "n2"):
            await cluster.add_node(name)
        async with cluster.coordinator():
            await cluster.apply(model("m", 1, PAIR))
            await cluster.live(5)
            await cluster.agents()
            (replica,) = {each.replica for each in await cluster.replicas()}
            await cluster.hand.delete(keyspace.assignment("n2", f"{replica}.1"))
            await cluster.live(5)
            wishes = sorted(await cluster.replicas(), key=lambda each: each.rank)
            assert [(each.replica, each.rank, each.epoch) for each in wishes] == [(replica, 0, 2), (replica, 1, 2)]
        await cluster.hand.close()

    asyncio.run(body())


def test_maps_of_the_fabric_decide_which_nodes_are_taken() -> None:
    async def body() -> None:
        cluster = Cluster()
        for name in ("n1", "n2", "n3"):
            port = {"hca": "mlx5_0", "port": 1, "link_layer": "InfiniBand", "rail": True, "guid": f"g{name}"}
            await cluster.add_node(name, topology={"rdma_ports": [port]})
        for subnet, names in (("s1", ["n1"]), ("s2", ["n2", "n3"])):
            hosts = [FabricNode(guid=name, kind="host", port_guids={1: f"g{name}"}) for name in names]
            fabric = FabricMapRecord(subnet=subnet, mapper=names[0], mapped_at=0.0, nodes=hosts)
            await cluster.hand.put(keyspace.fabric(subnet), fabric.encode())
        async with cluster.coordinator():
            await cluster.apply(model("m", 1, PAIR))
            await cluster.live(5)
            assert sorted(await cluster.assigned()) == ["n2", "n3"]
        await cluster.hand.close()

    asyncio.run(body())


def test_the_largest_replica_fits_into_a_transaction_of_etcd() -> None:
    def wish(rank: int, epoch: int) -> AssignmentRecord:
        return AssignmentRecord(shard=f"m-1.{rank}", replica="m-1", model="m", epoch=epoch, engine="vllm", rank=rank)

    old = tuple(Assigned(f"a{rank}", wish(rank, 1)) for rank in range(64))
    new = tuple(Placed(f"b{rank}", wish(rank, 2)) for rank in range(64))
    view = View(assignments={(each.node, each.record.shard): Stored(each.record, 1, 5) for each in old})
    for decision in (Create(new, ""), Move(old, new, ""), Delete(old, "")):
        write = write_for(decision, view)
        assert len(write.compares) <= MOST_COMPARES
        assert len(write.operations) <= 128
        keys = {each.key for each in write.compares}
        assert isinstance(decision, Create) or {keyspace.assignment(each.node, each.record.shard) for each in old} <= keys
