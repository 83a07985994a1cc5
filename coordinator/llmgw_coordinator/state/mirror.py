"""The mirror of etcd that everything is decided and answered from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from llmgw_base.clock import Clock
from llmgw_base.etcd.api import Change, Deleted, Frozen, Put, Stale, Store
from llmgw_coordinator.state import names
from llmgw_coordinator.state.expected import Expected
from llmgw_coordinator.state.table import Table
from llmgw_coordinator.state.view import Place, View
from llmgw_proto import keyspace
from llmgw_proto.records import (
    AliveRecord,
    AssignmentRecord,
    ClusterRecord,
    CoordinatorRecord,
    EndpointRecord,
    EngineSettings,
    FabricMapRecord,
    InventoryRecord,
    ModelSpec,
    NodeStatusRecord,
    RouterRecord,
    ShardRecord,
)

#: Watched one by one, so that what other parts of the keyspace grow to costs the coordinator nothing.
PREFIXES = (
    keyspace.CLUSTER,
    keyspace.LEADER,
    keyspace.COORDINATORS,
    keyspace.MODELS,
    keyspace.NODES,
    keyspace.ASSIGNMENTS,
    keyspace.SHARDS,
    keyspace.ENDPOINTS,
    keyspace.ROUTERS,
    keyspace.FABRIC,
    keyspace.ENGINES,
)


class Mirror:
    """Follows the prefixes for ever; :meth:`view` is what is known now.

    A key whose value cannot be read never hides the others: see :class:`Table`. ``expected`` holds the leader's own writes
    until the watches have shown them.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self.expected = Expected()
        self._cluster = Table(ClusterRecord, names.exactly(keyspace.CLUSTER))
        self._models = Table(ModelSpec, names.one(keyspace.MODELS))
        self._inventories = Table(InventoryRecord, names.of_node("inventory"))
        self._statuses = Table(NodeStatusRecord, names.of_node("status"))
        self._alive = Table(AliveRecord, names.of_node("alive"))
        self._assignments = Table(AssignmentRecord, names.two(keyspace.ASSIGNMENTS))
        self._shards = Table(ShardRecord, names.two(keyspace.SHARDS))
        self._endpoints = Table(EndpointRecord, names.two(keyspace.ENDPOINTS))
        self._routers = Table(RouterRecord, names.one(keyspace.ROUTERS))
        self._coordinators = Table(CoordinatorRecord, names.one(keyspace.COORDINATORS))
        self._candidates = Table(CoordinatorRecord, names.one(keyspace.LEADER))
        self._fabrics = Table(FabricMapRecord, names.one(keyspace.FABRIC))
        self._engines = Table(EngineSettings, names.one(keyspace.ENGINES))
        # What decides plans first: the others change often and never make a plan differ.
        self._planned: tuple[Table[Any, Any], ...] = (
            self._models,
            self._inventories,
            self._alive,
            self._assignments,
            self._shards,
        )
        self._others: tuple[Table[Any, Any], ...] = (
            self._cluster,
            self._statuses,
            self._endpoints,
            self._routers,
            self._coordinators,
            self._candidates,
            self._fabrics,
            self._engines,
        )
        self._synced: set[str] = set()
        self._behind: dict[str, Stale | Frozen] = {}
        self._behind_since: float | None = None
        self._listeners: list[Callable[[], None]] = []
        self._view: View | None = None
        self._ready = asyncio.Event()
        self._changed = asyncio.Event()
        self.resyncs = 0
        """How often the mirror came back after it had fallen behind."""

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            for prefix in PREFIXES:
                group.create_task(self._follow(prefix), name=f"watch {prefix}")

    def on_change(self, listener: Callable[[], None]) -> None:
        """Calls ``listener`` whenever something changed that a plan or the right to plan depends on."""
        self._listeners.append(listener)

    async def synced(self) -> None:
        """Returns once every prefix has been listed for the first time."""
        await self._ready.wait()

    @property
    def is_synced(self) -> bool:
        return self._ready.is_set()

    @property
    def stale_for(self) -> float | None:
        """Seconds since any part of the mirror stopped being up to date; None while all is."""
        return None if self._behind_since is None else self._clock.monotonic() - self._behind_since

    @property
    def frozen(self) -> str | None:
        """Why the store does not seem to be the one known before."""
        return next((each.reason for each in self._behind.values() if isinstance(each, Frozen)), None)

    @property
    def trouble(self) -> str | None:
        """Why nothing may be decided from the mirror now, with the remedy."""
        frozen = self.frozen
        if frozen is not None:
            return f"etcd is not the store known before: {frozen}; nothing is changed until it is or you restart this"
        stale = next(iter(self._behind.values()), None)
        if stale is not None:
            return f"etcd does not answer: {stale.reason}; what is shown is what was known before, look after etcd"
        return None if self.is_synced else "etcd has not been read yet"

    def view(self) -> View:
        if self._view is None:
            self._view = self._make_view()
        return self._view

    async def shows(self, check: Callable[[View], bool], *, within: float) -> bool:
        """Waits until the view passes ``check``, so that who has written something reads it here afterwards.

        Returns whether it did within so many seconds; a store that went away after the write is no reason to hang.
        """
        try:
            async with asyncio.timeout(within):
                while not check(self.view()):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    async def _follow(self, prefix: str) -> None:
        async for change in self._store.watch(prefix):
            self._take(prefix, change)

    def _take(self, prefix: str, change: Change) -> None:
        if isinstance(change, Put):
            self.expected.observe(change.key, change.value)
            self._apply(lambda table: table.put(change))
        elif isinstance(change, Deleted):
            self.expected.observe(change.key, None)
            self._apply(lambda table: table.delete(change.key))
        elif isinstance(change, Stale | Frozen):
            self._behind[prefix] = change
            if self._behind_since is None:
                self._behind_since = self._clock.monotonic()
            self._tell()
        else:
            self._caught_up(prefix)

    def _apply(self, apply: Callable[[Table[Any, Any]], bool]) -> None:
        self._view = None
        self._changed.set()
        if any(apply(table) for table in self._planned):
            self._tell()
        else:
            any(apply(table) for table in self._others)

    def _caught_up(self, prefix: str) -> None:
        self._synced.add(prefix)
        if self._behind.pop(prefix, None) is not None and not self._behind:
            self._behind_since = None
            self.resyncs += 1
        if len(self._synced) == len(PREFIXES):
            self._ready.set()
        self._tell()

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()

    def _make_view(self) -> View:
        cluster = self._cluster.rows.get(keyspace.CLUSTER)
        unread_nodes = {**self._inventories.bad, **self._alive.bad}
        places: dict[Place, str] = {**self._assignments.bad, **self._shards.bad}
        unread_nodes |= {node: cause for (node, _), cause in places.items()}
        unreadable = {
            cause.partition(":")[0]: cause for table in (*self._planned, *self._others) for cause in table.bad.values()
        }
        return View(
            cluster=cluster.record if cluster is not None else None,
            models=dict(self._models.rows),
            inventories=dict(self._inventories.rows),
            statuses=dict(self._statuses.rows),
            alive=dict(self._alive.rows),
            assignments=dict(self._assignments.rows),
            shards=dict(self._shards.rows),
            endpoints=dict(self._endpoints.rows),
            routers=dict(self._routers.rows),
            coordinators=dict(self._coordinators.rows),
            candidates=dict(self._candidates.rows),
            fabrics=dict(self._fabrics.rows),
            engines=dict(self._engines.rows),
            unreadable=unreadable,
            unread_models=dict(self._models.bad),
            unread_nodes=unread_nodes,
            breathing=frozenset(self._alive.present),
        )
