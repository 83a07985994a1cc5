"""One turn of the cluster's fabric mapping, for the agent's loop to call every few minutes."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping

from llmgw_agent.hardware.fabric.changes import carry_over
from llmgw_agent.hardware.fabric.elect import FabricPort, MapTask, tasks
from llmgw_agent.hardware.fabric.errors import FabricMapError
from llmgw_agent.hardware.fabric.mapper import make_map
from llmgw_agent.hardware.fabric.tools import Tools
from llmgw_base.clock import Clock
from llmgw_proto.records.fabric import FabricMapRecord

logger = logging.getLogger(__name__)

#: Seconds between two maps of a subnet.
EVERY = 300.0


async def turn(
    node: str,
    ports: Iterable[FabricPort],
    maps: Mapping[str, FabricMapRecord],
    write: Callable[[FabricMapRecord], Awaitable[None]],
    clock: Clock,
    tools: Callable[[MapTask], Tools] = lambda task: Tools(task.hca, task.port),
    deadline: float = 60.0,
) -> list[str]:
    """Makes the maps that are this node's to make, and writes them; what went wrong, in words.

    ``ports`` are those of all alive nodes that have the tools, ``maps`` what etcd holds.
    """
    troubles: list[str] = []
    for task in tasks(ports, maps):
        if task.node != node:
            continue
        try:
            made = await make_map(node, tools(task), deadline, clock)
        except FabricMapError as error:
            troubles.append(f"the fabric at {task.hca}:{task.port} was not mapped: {error}")
            logger.warning("fabric not mapped", extra={"fields": {"hca": task.hca, "port": task.port, "cause": str(error)}})
            continue
        # A fabric may be known by another name: its lowest switch was taken away, or two have been joined.
        before = maps.get(made.subnet) or maps.get(task.subnet or "")
        record = carry_over(before, made)
        for change in record.changes[len(before.changes) if before else 0 :]:
            logger.warning(
                "fabric changed", extra={"fields": {"subnet": record.subnet, "kind": change.kind, "what": change.text}}
            )
        await write(record)
    return troubles
