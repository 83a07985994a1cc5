"""The agent's part in mapping InfiniBand fabrics: tells the others its ports, sees theirs, and makes the maps that are its own.

Nothing is watched or written by a node without an active InfiniBand port. Ports have small keys of their own
(``fabric-ports/<node>/``, under the node's lease), because every mapper follows those of all nodes: inventories would be
thousands of times as much.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from llmgw_agent.hardware.fabric.elect import FabricPort, MapTask, active_ports
from llmgw_agent.hardware.fabric.mapper import missing_tools
from llmgw_agent.hardware.fabric.tools import Tools
from llmgw_agent.hardware.fabric.watch import FabricWatch
from llmgw_agent.live import LiveHardware
from llmgw_agent.shard.context import Context
from llmgw_base.etcd.api import Deleted, Put, Store, Synced
from llmgw_base.etcd.errors import StoreError
from llmgw_proto import keyspace
from llmgw_proto.records import BadRecordError, FabricMapRecord, FabricPortsRecord, Record

AGAIN_AFTER = 30.0
#: A map that nobody has renewed for so long may be deleted; until then its mapper may only have lost its lease for a moment.
FORGET_AFTER = 900.0
PROBLEM = "fabric"
R = TypeVar("R", bound=Record)
logger = logging.getLogger(__name__)


class Followed(Generic[R]):
    """The records below a prefix, by key. ``trusted`` is false while the store is silent or not the one known before."""

    def __init__(self, store: Store, prefix: str, record: type[R]) -> None:
        self._store, self._prefix, self._record = store, prefix, record
        self.records: dict[str, R] = {}
        self.trusted = asyncio.Event()

    async def run(self) -> None:
        async for change in self._store.watch(self._prefix):
            match change:
                case Put():
                    try:
                        self.records[change.key] = self._record.decode(change.value, change.key)
                    except BadRecordError as error:
                        logger.warning("record not understood", extra={"fields": {"cause": str(error)}})
                case Deleted():
                    self.records.pop(change.key, None)
                case Synced():
                    self.trusted.set()
                case _:
                    self.trusted.clear()


class FabricMaps:
    def __init__(
        self,
        context: Context,
        store: Store,
        hardware: LiveHardware,
        tools: Callable[[MapTask], Tools] = lambda task: Tools(task.hca, task.port),
    ) -> None:
        self._context, self._store, self._hardware = context, store, hardware
        self._changed = asyncio.Event()
        hardware.listeners.append(self._changed.set)
        self._maps = Followed(store, keyspace.FABRIC, FabricMapRecord)
        self._others = Followed(store, keyspace.FABRIC_PORTS, FabricPortsRecord)
        self._watch = FabricWatch(context.node, self._ports, self._known, self._write, self._forget, context.clock, tools)

    async def run(self) -> None:
        """Until cancelled; begins when there is a port."""
        while not self._own():
            await self._news()
        while True:
            try:
                await self._map()
            except Exception:
                logger.exception("fault in mapping fabrics; it begins anew in %g s", AGAIN_AFTER)
            await self._context.clock.sleep(AGAIN_AFTER)

    async def _map(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._maps.run(), name="fabric maps")
            group.create_task(self._others.run(), name="fabric ports")
            group.create_task(self._tell(), name="own fabric ports")
            group.create_task(self._turns(), name="fabric mapping")

    async def _news(self) -> None:
        await self._changed.wait()
        self._changed.clear()

    async def _tell(self) -> None:
        """Only a node with the tools stands for election."""
        node, publisher = self._context.node, self._context.publisher
        while True:
            own = [] if missing_tools() else self._own()
            record = FabricPortsRecord(node=node, ports=[(port.hca, port.port, port.guid) for port in own])
            if own:
                publisher.put(keyspace.fabric_ports(node), record.encode(), leased=True)
            else:
                publisher.remove(keyspace.fabric_ports(node))
            await self._news()

    async def _turns(self) -> None:
        while True:
            await self._maps.trusted.wait()
            await self._others.trusted.wait()
            pause = AGAIN_AFTER
            try:
                pause = await self._watch.once()
            except StoreError as error:
                logger.warning("the fabric map was not written", extra={"fields": {"cause": str(error)}})
            if self._watch.troubles:
                self._context.problems[PROBLEM] = "; ".join(self._watch.troubles)
            else:
                self._context.problems.pop(PROBLEM, None)
            await self._context.clock.sleep(pause)

    def _own(self) -> list[FabricPort]:
        return active_ports(self._context.node, self._hardware.devices.topology)

    def _ports(self) -> Iterable[FabricPort]:
        yield from self._own()
        for record in self._others.records.values():
            if record.node != self._context.node:
                yield from (FabricPort(record.node, hca, port, guid) for hca, port, guid in record.ports)

    def _known(self) -> dict[str, FabricMapRecord]:
        return {record.subnet: record for record in self._maps.records.values()}

    async def _write(self, record: FabricMapRecord) -> None:
        await self._store.put(keyspace.fabric(record.subnet), record.encode())

    async def _forget(self, subnet: str) -> None:
        record = self._known().get(subnet)
        if record is not None and self._context.clock.wall() - record.mapped_at >= FORGET_AFTER:
            await self._store.delete(keyspace.fabric(subnet))
