"""Decisions as transactions: what they compare, and what is made of each outcome."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import pytest

from llmgw_base.etcd.api import Change, CreateRevisionIs, DeleteOp, ModRevisionIs, PutOp
from llmgw_base.etcd.errors import OutcomeUnknownError, StoreError, StoreFullError
from llmgw_coordinator.errors import NotLeaderError
from llmgw_coordinator.leader.apply import Applied, Applier, write_for
from llmgw_coordinator.leader.fence import Term
from llmgw_coordinator.planner import Assigned, Create, Decision, Delete, Move, Placed, Update
from llmgw_coordinator.state.expected import Expected
from llmgw_coordinator.state.view import Stored, View
from llmgw_proto import keyspace
from llmgw_proto.records import AssignmentRecord
from llmgw_testing.coordinators import Cluster
from llmgw_testing.memstore import MemoryStore
from llmgw_testing.worlds import model

OLD = AssignmentRecord(shard="m-1.0", replica="m-1", model="m", epoch=1, engine="command")
NEW = OLD.model_copy(update={"epoch": 2})
HERE = Assigned("n1", OLD)
VIEW = View(assignments={("n1", "m-1.0"): Stored(OLD, 5, 7)})
KEY, OTHER = keyspace.assignment("n1", "m-1.0"), keyspace.assignment("n2", "m-1.0")


def create(node: str) -> Create:
    return Create((Placed(node, OLD),), "")


@pytest.mark.parametrize(
    ("decision", "compares", "operations"),
    [
        (create("n2"), [CreateRevisionIs(OTHER, 0)], [PutOp(OTHER, OLD.encode())]),
        (Delete((HERE,), ""), [ModRevisionIs(KEY, 7)], [DeleteOp(KEY)]),
        (Update((HERE,), (Placed("n1", NEW),), ""), [ModRevisionIs(KEY, 7)], [PutOp(KEY, NEW.encode())]),
        (Move((HERE,), (Placed("n1", NEW),), ""), [ModRevisionIs(KEY, 7)], [PutOp(KEY, NEW.encode())]),
        (
            Move((HERE,), (Placed("n2", NEW),), ""),
            [ModRevisionIs(KEY, 7), CreateRevisionIs(OTHER, 0)],
            [DeleteOp(KEY), PutOp(OTHER, NEW.encode())],
        ),
    ],
)
def test_a_decision_holds_only_for_what_it_was_made_about(decision: Decision, compares: object, operations: object) -> None:
    write = write_for(decision, VIEW)
    assert (write.compares, write.operations) == (compares, operations)


@dataclass
class Bench:
    """A store with a leader's key, and an applier."""

    store: MemoryStore
    term: Term
    expected: Expected

    async def apply(self, *decisions: Decision) -> Applied:
        return await Applier(self.store, self.expected).apply(self.term, decisions, VIEW)


async def bench() -> Bench:
    store = Cluster().hand
    lease = await store.grant(60)
    await store.put(keyspace.leader("c1"), b"{}", lease=lease.id)
    found = await store.get(keyspace.leader("c1"))
    assert found is not None
    return Bench(store, Term(found.key, found.create_revision, lease), Expected())


def failing(error: StoreError, *, after_all: bool) -> Callable[[MemoryStore], None]:
    """Makes the next transactions fail, ``after_all``: though they are done."""

    def install(store: MemoryStore) -> None:
        real = store.txn

        async def txn(*args: object, **kwargs: object) -> bool:
            if after_all:
                await real(*args, **kwargs)  # type: ignore[arg-type]  # passed on
            raise error

        store.txn = txn  # type: ignore[method-assign]  # a fault

    return install


def test_what_is_written_is_expected_back() -> None:
    async def body() -> None:
        each = await bench()
        result = await each.apply(create("n2"))
        assert (result.written, result.refused, result.stopped) == (1, 0, None)
        assert each.expected.outstanding() == {OTHER: OLD.encode()}
        await each.store.close()

    asyncio.run(body())


def test_what_is_there_already_is_not_overwritten_and_the_rest_goes_on() -> None:
    async def body() -> None:
        each = await bench()
        await each.store.put(OTHER, b"someone's")
        result = await each.apply(create("n2"), Delete((HERE,), ""), create("n3"))
        assert (result.written, result.refused) == (1, 2)
        found = await each.store.get(OTHER)
        assert found is not None
        assert found.value == b"someone's"
        assert set(each.expected.outstanding()) == {keyspace.assignment("n3", "m-1.0")}
        await each.store.close()

    asyncio.run(body())


@pytest.mark.parametrize(
    ("fault", "expected_after"),
    [
        (failing(StoreFullError("etcd: full (test)"), after_all=False), set()),
        (failing(OutcomeUnknownError("etcd: lost (test)"), after_all=False), set()),
        (failing(OutcomeUnknownError("etcd: lost (test)"), after_all=True), {OTHER}),
    ],
    ids=["refused", "lost and not done", "lost and done"],
)
def test_after_a_fault_only_what_was_done_is_expected(fault: Callable[[MemoryStore], None], expected_after: set[str]) -> None:
    async def body() -> None:
        each = await bench()
        fault(each.store)
        many = [create(f"n{index}") for index in range(100, 200)]
        result = await each.apply(create("n2"), *many)
        assert isinstance(result.stopped, StoreError)
        assert result.written == 0
        assert OTHER in expected_after or OTHER not in each.expected.outstanding()
        assert expected_after <= set(each.expected.outstanding())
        tried = [item.key for item in (await each.store.range(keyspace.ASSIGNMENTS)).items]
        assert set(each.expected.outstanding()) == set(tried), "what is there and nothing else"
        assert len(tried) < 50, "the rest was not even tried"
        await each.store.close()

    asyncio.run(body())


def test_who_leads_no_longer_stops() -> None:
    async def body() -> None:
        each = await bench()
        await each.store.delete(each.term.key)
        result = await each.apply(*[create(f"n{index}") for index in range(100)])
        assert isinstance(result.stopped, NotLeaderError)
        assert len(each.expected) == 0
        assert (await each.store.range(keyspace.ASSIGNMENTS)).items == ()
        await each.store.close()

    asyncio.run(body())


def test_a_leader_whose_watch_lags_does_not_place_the_same_replica_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        cluster = Cluster()
        real = MemoryStore.watch

        async def lagging(self: MemoryStore, prefix: str) -> AsyncIterator[Change]:
            async for change in real(self, prefix):
                if prefix == keyspace.ASSIGNMENTS:
                    await cluster.clock.sleep(2)
                yield change

        monkeypatch.setattr(MemoryStore, "watch", lagging)
        await cluster.add_node("n1")
        async with cluster.coordinator():
            await cluster.live(5)
            for index in range(4):
                await cluster.apply(model(f"m{index}"))
                await cluster.live(0.5)
            await cluster.live(30)
            assert sorted(each.model for each in await cluster.replicas()) == ["m0", "m1", "m2", "m3"]

    asyncio.run(body())
