"""The fleet's settings for engines as etcd has them, and the locks that belong to them."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable
from pathlib import Path

from llmgw_agent.install.errors import InstallFailedError, InstallRefusedError
from llmgw_base.clock import Clock
from llmgw_base.etcd.api import Deleted, Put, Stale, Store, Synced
from llmgw_base.etcd.errors import StoreError
from llmgw_base.etcd.timers import done_within, reap
from llmgw_proto import keyspace
from llmgw_proto.records import BadRecordError
from llmgw_proto.records.engine import EngineSettings

#: A starting agent waits so long for the fleet's settings before it says that an engine is not to be had.
READY_SECONDS = 10.0
logger = logging.getLogger(__name__)


class Fleet:
    """``changed`` is called whenever there is something new."""

    def __init__(self, store: Store, root: Path, changed: Callable[[], None], clock: Clock) -> None:
        """
        Args:
            root: where the locks are kept, by engine.
        """
        self._store, self._root, self._changed, self._clock = store, root, changed, clock
        self._known = asyncio.Event()
        self._trusted = False
        self.settings: dict[str, EngineSettings] = {}

    async def follow(self) -> None:
        """For ever. A removal counts only in a store that is known to be right."""
        async for change in self._store.watch(keyspace.ENGINES):
            if isinstance(change, Put):
                self._put(change)
            elif isinstance(change, Deleted):
                if self._trusted:
                    self.settings.pop(keyspace.split(change.key, keyspace.ENGINES)[0], None)
                    self._changed()
            else:
                self._trusted = isinstance(change, Synced)
                if self._trusted:
                    self._known.set()
                if isinstance(change, Stale):
                    logger.info("etcd is silent, engines stay as they were set", extra={"fields": {"cause": change.reason}})

    async def ready(self) -> None:
        """Returns once the settings are known, or when etcd takes too long to tell them."""
        known = asyncio.ensure_future(self._known.wait())
        try:
            await done_within(self._clock, known, READY_SECONDS)
        finally:
            await reap(known)

    def _put(self, change: Put) -> None:
        name = keyspace.split(change.key, keyspace.ENGINES)[0]
        try:
            self.settings[name] = EngineSettings.decode(change.value, change.key)
        except BadRecordError as error:
            logger.error("settings of an engine not understood, keeping those before", extra={"fields": {"cause": str(error)}})  # noqa: TRY400
            return
        self._changed()

    async def lock(self, engine: str, version: str, sha256: str) -> Path:
        """Where the lock lies, fetched unless it is here.

        Raises:
            InstallFailedError: etcd does not answer.
            InstallRefusedError: there is none, or not this one.
        """
        path = self._root / engine / "locks" / f"fleet-{version}-{sha256[:12]}.txt"
        if await asyncio.to_thread(_is, path, sha256):
            return path
        title = f"engine {engine} {version}"
        try:
            found = await self._store.get(keyspace.engine_lock(engine, version))
        except StoreError as error:
            raise InstallFailedError(f"{title}: its lock is in etcd, which does not answer: {error}") from error
        if found is None or hashlib.sha256(found.value).hexdigest() != sha256:
            state = "gone from etcd" if found is None else "another one than the settings say"
            raise InstallRefusedError(
                f"{title}: its lock is {state}; set it again: `llmgwctl engine set {engine} --version {version} --lock FILE`"
            )
        try:
            await asyncio.to_thread(_write, path, found.value)
        except OSError as error:
            raise InstallFailedError(f"{title}: {path} cannot be written: {error.strerror}") from error
        return path


def _is(path: Path, sha256: str) -> bool:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == sha256
    except OSError:
        return False


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}")
    fresh.write_bytes(content)
    fresh.replace(path)
