"""The agent's part in mapping fabrics, as a loop."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping

from llmgw_agent.hardware.fabric.elect import FabricPort, MapTask, orphans
from llmgw_agent.hardware.fabric.mapper import missing_tools
from llmgw_agent.hardware.fabric.service import EVERY, turn
from llmgw_agent.hardware.fabric.tools import Tools
from llmgw_base.clock import Clock
from llmgw_proto.records.fabric import FabricMapRecord

logger = logging.getLogger(__name__)

#: After a map of an unknown subnet the next turn comes soon: more ports may be waiting for theirs.
_SOON = 10.0


class FabricWatch:
    """Maps what this node is elected to map, every five minutes.

    Args:
        node: this node's name.
        ports: the ports of all alive nodes (``elect.active_ports`` of each node's topology).
        maps: the maps that etcd holds, by subnet.
        write, forget: store a map; delete the map of a subnet that nobody is on any more.
    """

    def __init__(
        self,
        node: str,
        ports: Callable[[], Iterable[FabricPort]],
        maps: Callable[[], Mapping[str, FabricMapRecord]],
        write: Callable[[FabricMapRecord], Awaitable[None]],
        forget: Callable[[str], Awaitable[None]],
        clock: Clock,
        tools: Callable[[MapTask], Tools] = lambda task: Tools(task.hca, task.port),
    ) -> None:
        self._node, self._ports, self._maps = node, ports, maps
        self._write, self._forget, self._clock, self._tools = write, forget, clock, tools
        self._troubles: list[str] = []

    @property
    def troubles(self) -> list[str]:
        """Why the last turn could not map something, for the node's problems."""
        return self._troubles

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            pause = await self.once()
            await self._clock.sleep(pause)

    async def once(self) -> float:
        """One turn; seconds until the next."""
        ports, maps = list(self._ports()), dict(self._maps())
        mine = [port for port in ports if port.node == self._node]
        if not mine:
            self._troubles = []
            return EVERY
        if missing := missing_tools():
            self._troubles = [
                f"InfiniBand is here, but {', '.join(missing)} is not installed: install infiniband-diags for a fabric map"
            ]
            return EVERY
        written: list[FabricMapRecord] = []

        async def write(record: FabricMapRecord) -> None:
            written.append(record)
            await self._write(record)

        self._troubles = await turn(self._node, ports, maps, write, self._clock, self._tools)
        after = maps | {record.subnet: record for record in written}
        for subnet in orphans(ports, after):
            # The one who maps the subnet that swallowed it, or any node that is left, removes it once.
            if written and subnet not in {record.subnet for record in written}:
                logger.info("fabric map is out of use", extra={"fields": {"subnet": subnet}})
                await self._forget(subnet)
        return _SOON if any(record.subnet not in maps for record in written) else EVERY
