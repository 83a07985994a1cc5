"""Puts decisions into etcd: one fenced transaction each, several at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from llmgw_base.etcd.api import Compare, CreateRevisionIs, DeleteOp, ModRevisionIs, Operation, PutOp, Store
from llmgw_base.etcd.errors import OutcomeUnknownError, StoreError
from llmgw_coordinator.errors import NotLeaderError
from llmgw_coordinator.leader.fence import Term, fenced
from llmgw_coordinator.planner import Assigned, Create, Decision, Delete, Move, Update
from llmgw_coordinator.state.expected import Expected
from llmgw_coordinator.state.view import View
from llmgw_proto import keyspace

AT_ONCE = 16
#: etcd takes 128 in one transaction unless it is configured otherwise; one is the fence.
MOST_COMPARES = 127

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Applied:
    """What became of a pass's decisions."""

    written: int = 0
    refused: int = 0
    """The world had changed meanwhile; the next pass decides anew."""
    stopped: StoreError | NotLeaderError | None = None
    """Why the rest was not even tried."""


@dataclass(frozen=True, slots=True)
class Write:
    compares: Sequence[Compare]
    operations: Sequence[Operation]


def write_for(decision: Decision, view: View) -> Write:
    """The transaction of a decision that was made from ``view``: it holds only if what it was decided about is unchanged.

    All shards of a replica are in the one transaction.
    """
    sources = () if isinstance(decision, Create) else decision.sources
    shards = () if isinstance(decision, Delete) else decision.shards
    old = {_key(each): each for each in sources}
    new = {keyspace.assignment(each.node, each.record.shard): each.record.encode() for each in shards}
    unchanged: list[Compare] = [_unchanged(key, each, view) for key, each in old.items()]
    absent: list[Compare] = [CreateRevisionIs(key, 0) for key in new if key not in old]
    gone: list[Operation] = [DeleteOp(key) for key in old if key not in new]
    puts: list[Operation] = [PutOp(key, value) for key, value in new.items()]
    # Nobody but leaders writes below assignments/, so what is cut off here is no more than a second lock.
    return Write([*unchanged, *absent][:MOST_COMPARES], [*gone, *puts])


def _key(assigned: Assigned) -> str:
    return keyspace.assignment(assigned.node, assigned.record.shard)


def _unchanged(key: str, assigned: Assigned, view: View) -> ModRevisionIs:
    return ModRevisionIs(key, view.assignments[assigned.node, assigned.record.shard].mod_revision)


class Applier:
    def __init__(self, store: Store, expected: Expected) -> None:
        self._store = store
        self._expected = expected

    async def apply(self, term: Term, decisions: Sequence[Decision], view: View) -> Applied:
        """Tries every decision until the store or the right to write is gone."""
        result = Applied()
        waiting = list(reversed(decisions))

        async def work() -> None:
            while waiting and result.stopped is None:
                await self._apply_one(term, waiting.pop(), view, result)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(AT_ONCE, len(decisions))):
                group.create_task(work(), name="apply decisions")
        return result

    async def _apply_one(self, term: Term, decision: Decision, view: View, result: Applied) -> None:
        write = write_for(decision, view)
        for operation in write.operations:
            self._expected.add(operation.key, operation.value if isinstance(operation, PutOp) else None)
        try:
            done = await fenced(self._store, term, write.compares, write.operations)
        except OutcomeUnknownError as error:
            result.stopped = error
            await verify(self._store, self._expected, [operation.key for operation in write.operations])
            return
        except (StoreError, NotLeaderError) as error:
            self._withdraw(write)
            result.stopped = error
            return
        if done:
            result.written += 1
            _log(decision)
        else:
            self._withdraw(write)
            result.refused += 1

    def _withdraw(self, write: Write) -> None:
        for operation in write.operations:
            self._expected.withdraw(operation.key)


async def verify(store: Store, expected: Expected, keys: Iterable[str]) -> None:
    """Reads keys whose writing is in doubt and stops expecting what is not there; what cannot be read stays expected."""
    for key in keys:
        try:
            found = await store.get(key)
        except StoreError as error:
            logger.warning("cannot read what became of a write", extra={"fields": {"key": key, "cause": str(error)}})
            return
        if (found.value if found is not None else None) != expected.outstanding().get(key):
            expected.withdraw(key)


def _log(decision: Decision) -> None:
    shards = decision.sources if isinstance(decision, Delete) else decision.shards
    record = shards[0].record
    nodes = [each.node for each in shards]
    fields = {"model": record.model, "replica": record.replica, "epoch": record.epoch, "why": decision.why}
    fields["node"] = ", ".join(nodes)
    if isinstance(decision, Move):
        fields["from"] = ", ".join(each.node for each in decision.sources)
    logger.info("replica %s", _VERBS[type(decision)], extra={"fields": fields})


_VERBS: dict[type[Decision], str] = {Create: "placed", Move: "moved", Delete: "given up", Update: "updated in place"}
