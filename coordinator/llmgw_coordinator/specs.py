"""Model specs in etcd: every write compares the key's mod_revision, so that concurrent writers lose nothing.

A write whose answer was lost is safe to try again for the same reason: either it happened, then the second try finds the key
changed and reads the wish already there, or it did not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from llmgw_base.etcd.api import Compare, CreateRevisionIs, DeleteOp, KeyValue, ModRevisionIs, PutOp, Store
from llmgw_base.etcd.errors import OutcomeUnknownError
from llmgw_coordinator.errors import SpecConflictError
from llmgw_proto import keyspace
from llmgw_proto.records import BadRecordError, ModelSpec

#: Each lost race means that another writer won one, so this is never reached by writers of human number.
TRIES = 50

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Written:
    spec: ModelSpec
    created: bool
    changed: bool


class Specs:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def put(self, wanted: ModelSpec) -> Written:
        """Stores the spec; its generation is one more than before if it differs in anything else.

        Raises:
            SpecConflictError: others kept changing the same model.
            StoreError
        """
        result = await self._change(wanted.name, lambda old: wanted)
        assert result is not None
        return result

    async def scale(self, name: str, replicas: int) -> Written | None:
        """Sets how many replicas are wished, leaving the rest of the spec as it is; None if there is no such model.

        Raises:
            BadRecordError: the stored spec cannot be read.
            SpecConflictError: others kept changing the same model.
            StoreError
        """

        def scaled(old: ModelSpec | None) -> ModelSpec | None:
            if old is None:
                return None
            ends = old.replicas.max
            count = old.replicas.model_copy(update={"min": replicas, "max": max(ends, replicas) if ends is not None else None})
            return old.model_copy(update={"replicas": count})

        return await self._change(name, scaled, must_read=True)

    async def delete(self, name: str) -> bool:
        """Returns whether there was one.

        Raises:
            StoreError
        """
        key = keyspace.model(name)
        existed = False
        for _ in range(TRIES):
            found = await self._store.get(key)
            if found is None:
                return existed
            existed = True
            if await self._try([ModRevisionIs(key, found.mod_revision)], DeleteOp(key)):
                return True
        raise SpecConflictError(f"model {name} is being changed by others all the time")

    async def _change(
        self, name: str, change: Callable[[ModelSpec | None], ModelSpec | None], *, must_read: bool = False
    ) -> Written | None:
        key = keyspace.model(name)
        sent: ModelSpec | None = None
        created = False
        for _ in range(TRIES):
            found = await self._store.get(key)
            old = _read(found, must_read=must_read)
            wanted = change(old)
            if wanted is None:
                return None
            if old is not None and wanted.model_copy(update={"generation": old.generation}) == old:
                mine = sent is not None and sent == old
                return Written(old, created=created and mine, changed=mine)
            sent = wanted.model_copy(update={"generation": (old.generation if old is not None else 0) + 1})
            created = found is None
            compare: Compare = CreateRevisionIs(key, 0) if found is None else ModRevisionIs(key, found.mod_revision)
            if await self._try([compare], PutOp(key, sent.encode())):
                return Written(sent, created=created, changed=True)
        raise SpecConflictError(f"model {name} is being changed by others all the time")

    async def _try(self, compares: list[Compare], operation: PutOp | DeleteOp) -> bool:
        """Whether it was certainly done."""
        try:
            return await self._store.txn(compares, [operation])
        except OutcomeUnknownError as error:
            logger.warning("the answer to a write was lost", extra={"fields": {"key": operation.key, "cause": str(error)}})
            return False


def _read(found: KeyValue | None, *, must_read: bool) -> ModelSpec | None:
    """An unreadable spec is treated as absent by who replaces it whole, so that a good one can be put in its place."""
    if found is None:
        return None
    try:
        return ModelSpec.decode(found.value, found.key)
    except BadRecordError:
        if must_read:
            raise
        return None
