"""What the leader wishes of this node: ``assignments/<node>/``, turned into wishes and removals.

A removal is believed only from a store that is known to be right: while it is silent or looks like another store, nothing is
removed; what was deleted meanwhile shows at the next whole list.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Protocol

from llmgw_base.etcd.api import Change, Deleted, Frozen, Put, Stale, Store, Synced
from llmgw_proto import keyspace
from llmgw_proto.records import AssignmentRecord, BadRecordError

logger = logging.getLogger(__name__)


class Sink(Protocol):
    def wish(self, assignment: AssignmentRecord) -> None: ...

    def gone(self, shard: str) -> None: ...

    def complete(self, shards: set[str]) -> None:
        """``shards`` is all that is wished, as of now."""
        ...


@dataclass(slots=True)
class WishTable:
    """Changes in, calls of the sink out. No I/O."""

    node: str
    sink: Sink
    known: set[str] = field(default_factory=set)
    trusted: bool = False

    def apply(self, change: Change) -> None:
        match change:
            case Put():
                self._put(change)
            case Deleted():
                shard = self._shard(change.key)
                self.known.discard(shard)
                if self.trusted:
                    logger.info("wish gone", extra={"fields": {"shard": shard}})
                    self.sink.gone(shard)
            case Synced():
                self.trusted = True
                self.sink.complete(set(self.known))
            case Stale():
                self.trusted = False
                logger.warning("etcd is silent, going on with what is known", extra={"fields": {"cause": change.reason}})
            case Frozen():
                self.trusted = False
                logger.error(
                    "etcd is not the store known before: nothing is stopped", extra={"fields": {"cause": change.reason}}
                )

    def _put(self, change: Put) -> None:
        shard = self._shard(change.key)
        # Also when it cannot be read: a wish that this version does not understand is no wish to stop.
        self.known.add(shard)
        try:
            assignment = AssignmentRecord.decode(change.value, change.key)
        except BadRecordError as error:
            logger.error("assignment not understood, keeping what was known", extra={"fields": {"cause": str(error)}})  # noqa: TRY400
            return
        if assignment.shard != shard:
            logger.error("assignment is under another shard's key, ignored", extra={"fields": {"key": change.key}})
            return
        self.sink.wish(assignment)

    def _shard(self, key: str) -> str:
        return keyspace.split(key, keyspace.assignments_of(self.node))[0]


async def follow(store: Store, node: str, sink: Sink) -> None:
    """Feeds the sink until cancelled."""
    table = WishTable(node, sink)
    async for change in store.watch(keyspace.assignments_of(node)):
        table.apply(change)
