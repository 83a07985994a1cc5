"""The fleet's settings for engines in etcd: every write compares the mod_revision, so that concurrent writers lose nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping

from llmgw_base.clock import Clock
from llmgw_base.etcd.api import Compare, CreateRevisionIs, DeleteOp, KeyValue, ModRevisionIs, Operation, PutOp, Store
from llmgw_base.etcd.errors import OutcomeUnknownError
from llmgw_coordinator.errors import SpecConflictError
from llmgw_proto import keyspace
from llmgw_proto.records import BadRecordError
from llmgw_proto.records.engine import EngineOverride, EngineRelease, EngineSettings

TRIES = 50
#: Locks that are removed in one transaction; etcd takes 128 operations.
MOST_AT_ONCE = 100


def with_version(
    old: EngineSettings, override: EngineOverride, release: EngineRelease | None, *, release_only: bool
) -> EngineSettings:
    """The settings with a version for all nodes, or for those that the override names. Pure.

    ``release`` None: how it is had stays as it was said before, or is by the engine's own package.
    """
    releases = dict(old.releases)
    if release is not None or override.version not in releases:
        releases[override.version] = release or EngineRelease()
    changes: dict[str, object] = {"releases": releases}
    if not release_only:
        if override.gpu_class is None and not override.labels:
            changes["version"] = override.version
        elif any(each.selector == override.selector for each in old.overrides):
            changes["overrides"] = [override if each.selector == override.selector else each for each in old.overrides]
        else:
            changes["overrides"] = [*old.overrides, override]
    return old.model_copy(update=changes)


def without(old: EngineSettings, gpu_class: str | None, labels: Mapping[str, str]) -> EngineSettings | None:
    """Without one override; None if there is none like it. Pure."""
    selector = EngineOverride(version="0", gpu_class=gpu_class, labels=dict(labels)).selector
    kept = [each for each in old.overrides if each.selector != selector]
    return old.model_copy(update={"overrides": kept}) if len(kept) < len(old.overrides) else None


class EngineStore:
    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock

    async def change(
        self,
        engine: str,
        change: Callable[[EngineSettings], EngineSettings | None],
        locks: Mapping[str, str | None] | None = None,
    ) -> EngineSettings | None:
        """Writes what ``change`` makes of the settings, with locks by version (None: removed) in the same step.

        Returns what is then stored; None if ``change`` gave None, and nothing was written.

        Raises:
            SpecConflictError: others kept changing the same engine's settings.
            StoreError
        """
        key = keyspace.engine(engine)
        more: list[Operation] = []
        for version, text in (locks or {}).items():
            lock_key = keyspace.engine_lock(engine, version)
            more.append(DeleteOp(lock_key) if text is None else PutOp(lock_key, text.encode()))
        for _ in range(TRIES):
            found = await self._store.get(key)
            changed = change(_read(found) or EngineSettings(engine=engine))
            if changed is None:
                return None
            wanted = changed.model_copy(update={"updated_at": self._clock.wall()})
            compare: Compare = CreateRevisionIs(key, 0) if found is None else ModRevisionIs(key, found.mod_revision)
            try:
                if await self._store.txn([compare], [PutOp(key, wanted.encode()), *more]):
                    return wanted
            except OutcomeUnknownError:
                # Writing the same again does no harm; if another one wrote meanwhile, theirs is built upon.
                continue
        raise _contended(engine)

    async def delete(self, engine: str) -> bool:
        """Removes the settings with all locks; whether there were any.

        Raises:
            SpecConflictError: others kept changing the same engine's settings.
            StoreError
        """
        key, tried = keyspace.engine(engine), False
        for _ in range(TRIES):
            found = await self._store.get(key)
            if found is None:
                return tried
            locks = await self._store.range(keyspace.engine_locks_of(engine))
            gone = [DeleteOp(each.key) for each in locks.items]
            try:
                if await self._store.txn([ModRevisionIs(key, found.mod_revision)], [DeleteOp(key), *gone[:MOST_AT_ONCE]]):
                    for each in locks.items[MOST_AT_ONCE:]:
                        await self._store.delete(each.key)
                    return True
            except OutcomeUnknownError:
                tried = True
        raise _contended(engine)


def _contended(engine: str) -> SpecConflictError:
    return SpecConflictError(f"the settings of engine {engine} are being changed by others all the time")


def digest(lock: str) -> str:
    return hashlib.sha256(lock.encode()).hexdigest()


def _read(found: KeyValue | None) -> EngineSettings | None:
    """What cannot be read is replaced."""
    if found is None:
        return None
    try:
        return EngineSettings.decode(found.value, found.key)
    except BadRecordError:
        return None
