"""The source of endpoints in a cluster: follows the store and keeps the directory right, also while the store is away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from llmgw_base.clock import Clock
from llmgw_base.etcd.api import Change, Deleted, Frozen, Put, Stale, Store, Synced
from llmgw_base.etcd.errors import StoreError, StoreUnsuitableError
from llmgw_proto import SCHEMA_VERSION, keyspace
from llmgw_proto.records import BadRecordError, ClusterRecord, EndpointRecord
from llmgw_router.ops.health import Source
from llmgw_router.table import cache
from llmgw_router.table.directory import Directory
from llmgw_router.table.known import Known
from llmgw_router.table.replica import Replica

logger = logging.getLogger(__name__)
_GATHER_SECONDS = 0.01
_IDLE_SECONDS = 1.0
_RETRY_SECONDS = 1.0
#: Under constant change the table on disk is this old at most.
_SAVE_SECONDS = 5.0

Connect = Callable[[], Awaitable[Store]]


class EtcdSource:
    """Runs in a task group of the worker. ``store`` is there once the first connection was made."""

    def __init__(
        self,
        directory: Directory,
        health: Source,
        clock: Clock,
        *,
        keep_seconds: float,
        probe_seconds: float,
        state_dir: Path | None,
    ) -> None:
        self._directory = directory
        self._health = health
        self._clock = clock
        self._probe_seconds = probe_seconds
        self._state_dir = state_dir
        self._known = Known(keep_seconds)
        self._doubted: set[str] = set()
        self._models: set[str] = set()
        self._dirty = asyncio.Event()
        self._synced = False
        self._saved_at = clock.monotonic()
        self._saved: tuple[ClusterRecord, dict[str, EndpointRecord]] | None = None
        self.store: asyncio.Future[Store] = asyncio.get_running_loop().create_future()
        health.kind = "etcd"

    def warm(self) -> None:
        """Takes the last known table from disk, marked stale until the store answers."""
        self._stale("the store has not answered yet")
        if self._state_dir is None:
            return
        saved_at = cache.load(self._state_dir, self._known)
        if saved_at is None:
            return
        age = self._clock.wall() - saved_at
        logger.info("starting from the table on disk", extra={"fields": {"age_seconds": round(age, 1)}})
        self._apply()
        self._health.loaded = True

    async def run(self, connect: Connect) -> None:
        """Until cancelled. A store that is away is waited for; one that is unsuitable ends the program."""
        store = await self._connected(connect)
        self.store.set_result(store)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow(store, keyspace.CLUSTER, self._cluster_change))
            group.create_task(self._follow(store, keyspace.ENDPOINTS, self._endpoint_change))
            group.create_task(self._follow(store, keyspace.MODELS, self._model_change))
            group.create_task(self._apply_changes())

    async def ready(self, running: asyncio.Task[None]) -> Store:
        """The store, once there is contact; raises what ended ``running``, the task of :meth:`run`, before that."""
        waiting = asyncio.ensure_future(self.store)
        await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)  # type: ignore[type-var]  # both are futures
        if running.done():
            await running
        return await waiting

    async def _connected(self, connect: Connect) -> Store:
        while True:
            try:
                return await connect()
            except StoreUnsuitableError:
                raise
            except StoreError as error:
                self._stale(str(error))
                await self._clock.sleep(_RETRY_SECONDS)

    async def _follow(self, store: Store, prefix: str, take: Callable[[Change], None]) -> None:
        async for change in store.watch(prefix):
            take(change)

    def vanished_dead(self, replica: Replica) -> None:
        """A vanished endpoint does not answer probes any more."""
        if self._known.dead(replica.id):
            logger.info("vanished endpoint is dead", extra={"fields": {"replica": replica.id}})
            self._apply()

    # --- changes ------------------------------------------------------------------------------------------------------

    def _cluster_change(self, change: Change) -> None:
        if not isinstance(change, Put) or change.key != keyspace.CLUSTER:
            return
        try:
            cluster = ClusterRecord.decode(change.value, change.key)
        except BadRecordError as error:
            logger.error("the cluster record cannot be read: %s", error)  # noqa: TRY400 - the message says it all
            return
        if cluster.schema_version > SCHEMA_VERSION:
            logger.error("the cluster's records are newer than this router knows; update llmgw-router")
            return
        self._known.cluster = cluster
        self._dirty.set()

    def _endpoint_change(self, change: Change) -> None:
        known = self._known
        if isinstance(change, Put):
            try:
                known.put(change.key, EndpointRecord.decode(change.value, change.key))
            except BadRecordError as error:
                logger.warning("endpoint record skipped: %s", error)
                return
        elif isinstance(change, Deleted):
            if known.deleted(change.key, self._clock.monotonic()):
                logger.warning("endpoint vanished without draining; it is probed", extra={"fields": {"key": change.key}})
        elif isinstance(change, Synced):
            if self._health.stale_since is not None:
                logger.info("the store answers", extra={"fields": {"revision": change.revision}})
            self._synced = True
            self._health.stale_since = None
            self._health.reason = ""
        elif isinstance(change, Stale | Frozen):
            self._stale(change.reason)
            return
        self._dirty.set()

    def _model_change(self, change: Change) -> None:
        """Only the names matter here: a model without a replica is not ready, one without a record does not exist."""
        if isinstance(change, Put | Deleted):
            (name,) = keyspace.split(change.key, keyspace.MODELS)[:1]
            if isinstance(change, Put):
                self._models.add(name)
            else:
                self._models.discard(name)
            self._directory.declare(self._models)

    def _stale(self, reason: str) -> None:
        if self._health.stale_since is None:
            self._health.stale_since = self._clock.monotonic()
            logger.warning("the table of endpoints may be out of date: %s", reason)
        self._health.reason = reason

    async def _apply_changes(self) -> None:
        """Applies what has come, many changes at once where they come in a burst."""
        while True:
            try:
                async with asyncio.timeout(_IDLE_SECONDS):
                    await self._dirty.wait()
            except TimeoutError:
                if self._known.expire(self._clock.monotonic()):
                    self._apply()
                await self._save()
                continue
            await self._clock.sleep(_GATHER_SECONDS)
            self._dirty.clear()
            if self._synced:
                self._apply()
                if self._known.cluster is not None:
                    self._health.loaded = True
                else:
                    self._health.reason = "the cluster record is not there; start a coordinator"
            if self._clock.monotonic() - self._saved_at >= _SAVE_SECONDS:
                await self._save()

    def _apply(self) -> None:
        specs = list(self._known.specs())
        for key, problem in self._known.problems.items():
            logger.warning("endpoint record cannot be used", extra={"fields": {"key": key, "cause": problem}})
        self._directory.apply(specs)
        vanished = {each.id for each in specs if each.vanished}
        fresh = vanished - self._doubted
        self._doubted = vanished
        if fresh:
            now = self._clock.monotonic()
            for replica in self._directory.table.replicas:
                if replica.id in fresh:
                    replica.health.doubt(now, self._probe_seconds)
            self._directory.refresh()

    async def _save(self) -> None:
        self._saved_at = self._clock.monotonic()
        if self._state_dir is None or not self._synced or self._known.cluster is None:
            return
        state = (self._known.cluster, dict(self._known.records))
        if state == self._saved:
            return
        try:
            await asyncio.to_thread(cache.save, self._state_dir, *state, self._clock.wall())
        except OSError as error:
            logger.warning("the table cannot be kept on disk: %s", error)
        self._saved = state
