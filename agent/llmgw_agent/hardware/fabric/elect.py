"""Which node maps which subnet. Pure: every agent computes the same from the same facts.

A subnet cannot be told by its prefix or its manager's LID, they are the same on most fabrics. So maps are known by the port
GUIDs in them: a subnet with a map is mapped again by the node that did it last, while that is alive and on it, else by the
first alive node that is; a port in no map is mapped by the first node that has one, one at a time, because that map may well
hold the ports of the others too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from llmgw_proto.records.fabric import FabricMapRecord


@dataclass(frozen=True, order=True)
class FabricPort:
    """An InfiniBand port that is ACTIVE on an alive node."""

    node: str
    hca: str
    port: int
    guid: str


@dataclass(frozen=True)
class MapTask:
    """``node`` shall map through its port; ``subnet`` is None when the subnet is not known yet."""

    node: str
    hca: str
    port: int
    subnet: str | None


def active_ports(node: str, topology: Mapping[str, object]) -> list[FabricPort]:
    """A node's ports that a map can be made through, from its published topology."""
    ports = topology.get("rdma_ports")
    return [
        FabricPort(node, str(port["hca"]), int(port["port"]), str(port["guid"]))
        for port in (ports if isinstance(ports, list) else [])
        if port.get("link_layer") == "InfiniBand"
        and port.get("state") == "ACTIVE"
        and port.get("guid")
        and not port.get("software")
        and not port.get("virtual_function")
    ]


def tasks(ports: Iterable[FabricPort], maps: Mapping[str, FabricMapRecord]) -> list[MapTask]:
    """All tasks of the cluster; ``ports`` are those of alive nodes that have the tools, ``maps`` the known maps by subnet."""
    left = sorted(ports)
    found: list[MapTask] = []
    for subnet, record in sorted(maps.items()):
        inside = {guid for node in record.nodes for guid in node.port_guids.values()}
        here = [port for port in left if port.guid in inside]
        if not here:
            continue
        left = [port for port in left if port not in here]
        chosen = next((port for port in here if port.node == record.mapper), here[0])
        found.append(MapTask(chosen.node, chosen.hca, chosen.port, subnet))
    if left:
        found.append(MapTask(left[0].node, left[0].hca, left[0].port, None))
    return found


def orphans(ports: Iterable[FabricPort], maps: Mapping[str, FabricMapRecord]) -> list[str]:
    """Subnets that no alive node is on any more, and maps that another one has swallowed: their keys can be deleted."""
    guids = {port.guid for port in ports}
    newest: dict[str, FabricMapRecord] = {}
    for record in maps.values():
        for node in record.nodes:
            for guid in node.port_guids.values():
                if guid not in newest or record.mapped_at > newest[guid].mapped_at:
                    newest[guid] = record
    current = {record.subnet for guid, record in newest.items() if guid in guids}
    return sorted(set(maps) - current)
