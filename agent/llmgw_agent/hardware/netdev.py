"""Network interfaces from sysfs: what they are, which card they sit on, bonds and their members."""

from __future__ import annotations

import msgspec

from llmgw_agent.hardware.pci import ADDRESS
from llmgw_agent.hardware.sysfs import Tree

ETHERNET, INFINIBAND, LOOPBACK = 1, 32, 772


class Netdev(msgspec.Struct, kw_only=True):
    """One interface. ``speed`` in Mb/s while it is up. ``kind`` and ``addresses`` come from the kernel's netlink."""

    name: str
    type: int | None
    up: bool
    mtu: int | None = None
    speed: int | None = None
    mac: str | None = None
    pci: str | None = None
    master: str | None = None
    members: list[str] = []
    members_up: list[str] = []
    virtual_function: bool = False
    kind: str | None = None
    addresses: list[str] = []

    @property
    def physical(self) -> bool:
        """A card's own interface, or a bond of such."""
        return (self.pci is not None and not self.virtual_function) or bool(self.members)


def read(tree: Tree) -> list[Netdev]:
    return [_netdev(tree, name) for name in tree.names("class/net") if tree.has("class/net", name, "type")]


def _netdev(tree: Tree, name: str) -> Netdev:
    place = f"class/net/{name}"
    state = tree.text(place, "operstate")
    carrier = tree.number(place, "carrier")
    speed = tree.number(place, "speed")
    device = tree.real(place, "device")
    # virtio interfaces sit on a bus of their own below the PCI device.
    address = next((part for part in reversed((device or "").split("/")) if ADDRESS.fullmatch(part)), None)
    master = tree.real(place, "master")
    members = (tree.text(place, "bonding/slaves") or "").split()
    return Netdev(
        name=name,
        type=tree.number(place, "type"),
        # Drivers that report no state (unknown) are judged by their carrier.
        up=state == "up" or (state == "unknown" and carrier == 1),
        mtu=tree.number(place, "mtu"),
        speed=speed if speed is not None and speed > 0 else None,
        mac=tree.text(place, "address") or None,
        pci=address,
        master=None if master is None else master.rpartition("/")[2],
        members=members,
        members_up=[each for each in members if tree.text(place, f"lower_{each}", "operstate") == "up" or _up(tree, each)],
        virtual_function=device is not None and tree.has(device, "physfn"),
    )


def _up(tree: Tree, name: str) -> bool:
    return tree.text("class/net", name, "operstate") == "up"
