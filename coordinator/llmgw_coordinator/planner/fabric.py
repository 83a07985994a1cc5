"""How nodes are attached to the networks between them, as far as that decides which of them can work together."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from llmgw_proto.records import FabricMapRecord, InventoryRecord

INFINIBAND = "InfiniBand"


@dataclass(frozen=True, slots=True)
class Attachment:
    """Of one node, by its rails: the RDMA ports that collectives use."""

    layer: str = ""
    """The rails' link layer, ``InfiniBand`` or ``Ethernet``; "" without rails."""
    rails: int = 0
    subnets: frozenset[str] = frozenset()
    """InfiniBand subnets, by their maps; else IP networks."""
    leaves: frozenset[str] = frozenset()
    """Switches that the rails lead to, where a map shows them."""

    @property
    def reach(self) -> tuple[str, frozenset[str]]:
        """Nodes that differ in this have no RDMA path between them: other link layers, or InfiniBand subnets apart."""
        return self.layer, self.subnets if self.layer == INFINIBAND else frozenset()


class Fabrics:
    """Finds attachments; the maps are only read when the first one is asked for."""

    def __init__(self, maps: Iterable[FabricMapRecord]) -> None:
        self._maps = maps
        self._ports: dict[str, tuple[str, str]] | None = None
        self._known: dict[str, Attachment] = {}

    def of(self, node: str, inventory: InventoryRecord | None) -> Attachment:
        if node not in self._known:
            self._known[node] = self._attachment(inventory) if inventory is not None else Attachment()
        return self._known[node]

    def _attachment(self, inventory: InventoryRecord) -> Attachment:
        topology = inventory.topology
        rails = [each for each in _dicts(topology.get("rdma_ports")) if each.get("rail")]
        if not rails:
            management = _dict(topology.get("interfaces")).get("management")
            return Attachment(subnets=_networks(topology, {management}))
        layer = str(rails[0].get("link_layer") or "")
        if layer != INFINIBAND:
            return Attachment(layer, len(rails), _networks(topology, {each.get("netdev") for each in rails}))
        ports = [self._index()[guid] for each in rails if (guid := _guid(each.get("guid"))) in self._index()]
        return Attachment(
            layer, len(rails), frozenset(subnet for subnet, _ in ports), frozenset(leaf for _, leaf in ports if leaf)
        )

    def _index(self) -> dict[str, tuple[str, str]]:
        """By port GUID: its subnet and its switch."""
        if self._ports is None:
            self._ports = {guid: (each.subnet, leaf) for each in self._maps for guid, leaf in _leaves(each)}
        return self._ports


def _leaves(record: FabricMapRecord) -> Iterator[tuple[str, str]]:
    """Port GUIDs of hosts with the switches that they lead to, "" for a port without a link to one."""
    nodes = record.nodes
    far: dict[tuple[int, int], str] = {}
    for a, a_port, b, b_port, _ in record.links:
        for near_end, port, other in ((a, a_port, b), (b, b_port, a)):
            if max(near_end, other) < len(nodes) and nodes[other].kind == "switch":
                far[near_end, port] = nodes[other].guid
    for index, node in enumerate(nodes):
        if node.kind == "host":
            for port, guid in node.port_guids.items():
                yield _guid(guid), far.get((index, port), "")


def _guid(value: Any) -> str:
    return str(value or "").replace(":", "").removeprefix("0x").lower()


def _networks(topology: dict[str, Any], interfaces: set[Any]) -> frozenset[str]:
    found = set()
    for device in _dicts(topology.get("netdevs")):
        if device.get("name") in interfaces:
            for text in device.get("addresses") or ():
                try:
                    address = ipaddress.ip_interface(str(text))
                except ValueError:
                    continue
                if not address.ip.is_link_local:
                    found.add(str(address.network))
    return frozenset(found)


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
