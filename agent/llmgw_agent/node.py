"""Publishes what is true of the node: alive, inventory, status."""

from __future__ import annotations

import asyncio
import logging
import os

from llmgw_agent import __version__
from llmgw_agent.host.inventory import read_inventory
from llmgw_agent.host.status import EVERY_SECONDS, read_status, worth_telling
from llmgw_agent.live import LiveHardware
from llmgw_agent.shard.context import Context
from llmgw_proto import keyspace
from llmgw_proto.records import AliveRecord, InventoryRecord, NodeStatusRecord

INVENTORY_EVERY = 60.0
#: Between two publications, so that hardware that flickers does not flood etcd.
LEAST_PAUSE = 0.5
logger = logging.getLogger(__name__)


class NodePublisher:
    def __init__(self, context: Context, grpc_address: str, hardware: LiveHardware) -> None:
        self._context, self._grpc_address, self._hardware = context, grpc_address, hardware
        self._started_at = context.clock.wall()
        self._inventory: InventoryRecord | None = None

    async def introduce(self) -> None:
        """Tells what the node is, then that it is alive, then for ever what has changed: a quarantine or an
        engine that was installed at once, one that somebody else installed within a minute.
        """
        await self._hardware.first()
        await self._publish_inventory(whole=True)
        self._publish_alive()
        clock = self._context.clock
        due = clock.monotonic() + INVENTORY_EVERY
        while True:
            await clock.sleep(LEAST_PAUSE)
            whole = not await self._changed(due - clock.monotonic()) or self._context.engines_changed.is_set()
            await self._publish_inventory(whole=whole)
            if whole:
                due = clock.monotonic() + INVENTORY_EVERY

    async def _changed(self, limit: float) -> bool:
        """Waits until the hardware or the engines have changed, at most so many seconds; whether the hardware has."""
        changed = asyncio.create_task(self._hardware.changed.wait())
        engines = asyncio.create_task(self._context.engines_changed.wait())
        waits = {changed, engines, asyncio.create_task(self._context.clock.sleep(max(0.0, limit)))}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            return changed.done()
        finally:
            for each in waits:
                each.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def keep_status(self) -> None:
        """For ever."""
        context, last = self._context, None
        while True:
            new = await asyncio.to_thread(read_status, context.config, list(context.problems.values()), context.clock.wall())
            if worth_telling(last, new):
                last = new
                self._publish_status(new)
            await context.clock.sleep(EVERY_SECONDS)

    def _publish_status(self, record: NodeStatusRecord) -> None:
        self._context.publisher.put(keyspace.node_status(self._context.node), record.encode())

    def _publish_alive(self) -> None:
        node = self._context.node
        record = AliveRecord(
            node=node, version=__version__, started_at=self._started_at, pid=os.getpid(), grpc_address=self._grpc_address
        )
        self._context.publisher.put(keyspace.alive(node), record.encode(), leased=True)

    async def _publish_inventory(self, *, whole: bool) -> None:
        """Not ``whole``: only the hardware is new, and nobody waits for engines to tell their versions."""
        context = self._context
        self._hardware.changed.clear()
        devices = self._hardware.devices
        if whole or self._inventory is None:
            context.engines_changed.clear()
            self._inventory = await asyncio.to_thread(read_inventory, context.config, context.drivers, devices)
        else:
            facts = {"gpus": devices.gpus, "topology": devices.topology, "problems": devices.problems}
            self._inventory = self._inventory.model_copy(update=facts)
        context.publisher.put(keyspace.inventory(context.node), self._inventory.encode())
