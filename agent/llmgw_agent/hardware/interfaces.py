"""Which network interface is for what, and the environment that NCCL and Gloo need on this host. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmgw_agent.hardware.netdev import ETHERNET, INFINIBAND, Netdev
from llmgw_agent.hardware.rdma import Port


@dataclass(frozen=True)
class Interfaces:
    """``management`` carries ordinary traffic, ``fabric`` are those on RDMA rails; an interface may be both."""

    management: str | None
    fabric: list[str]


def tell_apart(netdevs: Sequence[Netdev], rails: Sequence[Port], default_route: str | None) -> Interfaces:
    """The management interface is the default route's; without one, the best that is up on a card, outside the fabric first."""
    ports = {name for port in rails for name in (port.bond, port.netdev) if name is not None}
    on_rails = [device.name for device in netdevs if device.name in ports or (device.type == INFINIBAND and device.up)]
    fabric = [name for name in on_rails if not any(name in device.members for device in netdevs)]
    known = {device.name for device in netdevs}
    if default_route in known:
        return Interfaces(default_route, fabric)
    up = [device for device in netdevs if device.up and device.physical and device.type == ETHERNET and device.master is None]
    addressed = [device for device in up if device.addresses] or up
    own = [device for device in addressed if device.name not in fabric] or addressed
    # Bonds first, then faster ones: who has both means them for traffic between hosts.
    own.sort(key=lambda device: (not device.members, -(device.speed or 0)))
    if own:
        return Interfaces(own[0].name, fabric)
    live = [device.name for device in netdevs if device.name in fabric and device.up]
    return Interfaces(live[0] if live else None, fabric)


def nccl_env(rails: Sequence[Port], socket_interface: str | None, mixed_gpus: bool = False) -> dict[str, str]:
    """What this host's engines need to find each other, from this host's own names (they differ between hosts).

    The HCA list is exact (leading ``=``): without it ``mlx5_1`` also means ``mlx5_10``. Gloo takes one plain name only.
    """
    env: dict[str, str] = {}
    if rails:
        env["NCCL_IB_HCA"] = "=" + ",".join(port.name for port in rails)
    if socket_interface is not None:
        env["NCCL_SOCKET_IFNAME"] = f"={socket_interface}"
        env["GLOO_SOCKET_IFNAME"] = socket_interface
    if mixed_gpus:
        env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    return env
