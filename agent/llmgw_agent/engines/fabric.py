"""The environment with which NCCL, Gloo and UCX of this node find other nodes, from the hardware that was found here. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any


def fabric_environment(topology: Mapping[str, Any], address: str) -> dict[str, str]:
    """Every name is this node's own, since they differ between nodes. Ports in quarantine are left out where HCAs are listed.

    Args:
        topology: as the inventory has it; empty while the hardware was not looked at.
        address: under which other nodes reach this one. Its interface carries what the engines agree on among themselves.
    """
    environment: dict[str, str] = dict(topology.get("nccl_env") or {})
    interface = interface_of(topology, address)
    if interface is not None:
        # NCCL takes it exactly with a leading =; Gloo knows plain names only.
        environment |= {"NCCL_SOCKET_IFNAME": f"={interface}", "GLOO_SOCKET_IFNAME": interface}
    return environment


def interface_of(topology: Mapping[str, Any], address: str) -> str | None:
    """The interface that has the address; None if none is known to have it."""
    wanted = as_ip(address)
    if wanted is None:
        return None
    if wanted.is_loopback:
        return "lo"
    for device in topology.get("netdevs") or ():
        for text in device.get("addresses") or ():
            if as_ip(str(text).partition("/")[0]) == wanted:
                return str(device["name"])
    return None


def as_ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """None for a name."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def nearest_cards(topology: Mapping[str, Any], gpus: Sequence[str]) -> dict[str, str]:
    """PCI address of each GPU → PCI address of its nearest RDMA card whose first port NCCL may use too.

    Empty unless every one of the GPUs has such a card.
    """
    ports = {each.partition(":")[0::2] for each in _ports(topology)}
    cards = {each["name"]: each.get("pci") for each in topology.get("hcas") or () if (each["name"], "1") in ports}
    places = {each.get("uuid"): each.get("pci") for each in topology.get("gpus") or ()}
    found: dict[str, str] = {}
    for gpu in gpus:
        near = [cards[name] for name in (topology.get("gpu_nics") or {}).get(gpu) or () if cards.get(name)]
        if not near or not places.get(gpu):
            return {}
        found[places[gpu]] = near[0]
    return found


def _ports(topology: Mapping[str, Any]) -> list[str]:
    return str((topology.get("nccl_env") or {}).get("NCCL_IB_HCA", "")).removeprefix("=").split(",")
