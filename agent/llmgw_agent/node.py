"""Publishes what is true of the node: alive, inventory, status."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable

from llmgw_agent import __version__
from llmgw_agent.host.inventory import Devices, read_inventory
from llmgw_agent.host.status import EVERY_SECONDS, read_status, worth_telling
from llmgw_agent.shard.context import Context
from llmgw_proto import keyspace
from llmgw_proto.records import AliveRecord, NodeStatusRecord

INVENTORY_EVERY = 60.0
logger = logging.getLogger(__name__)


class NodePublisher:
    """``devices`` looks at the GPUs; it takes seconds at worst and does not raise."""

    def __init__(self, context: Context, grpc_address: str, devices: Callable[[], Awaitable[Devices]]) -> None:
        self._context, self._grpc_address, self._devices = context, grpc_address, devices
        self._started_at = context.clock.wall()

    async def introduce(self) -> None:
        """Tells what the node is, then that it is alive, then for ever what has changed: an engine that is installed later,
        or a GPU that is lost, shows within a minute.
        """
        await self._publish_inventory()
        self._publish_alive()
        while True:
            await self._context.clock.sleep(INVENTORY_EVERY)
            await self._publish_inventory()

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

    async def _publish_inventory(self) -> None:
        context = self._context
        record = await asyncio.to_thread(read_inventory, context.config, context.drivers, await self._devices())
        context.publisher.put(keyspace.inventory(context.node), record.encode())
