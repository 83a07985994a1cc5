"""InfiniBand and RoCE adapters (HCAs) and their ports, from sysfs."""

from __future__ import annotations

import re

import msgspec

from llmgw_agent.hardware.pci import PciDevice, read_one
from llmgw_agent.hardware.sysfs import Tree

ACTIVE = "ACTIVE"
_NO_LID = (0, 0xFFFF)
_IPOIB = 32
#: Counters in units of four bytes.
_WORDS = ("port_xmit_data", "port_rcv_data")


class Gid(msgspec.Struct):
    index: int
    gid: str
    kind: str | None = None
    netdev: str | None = None


class Port(msgspec.Struct, kw_only=True):
    """One port. Rate in Gb/s and LIDs only while the port is ACTIVE: a port that is down keeps old ones."""

    hca: str
    port: int
    state: str
    phys_state: str
    link_layer: str
    rate: float | None = None
    rate_text: str = ""
    lid: int | None = None
    sm_lid: int | None = None
    #: Down now, but it has been given a LID since the driver was loaded.
    was_up: bool = False
    guid: str | None = None
    gids: list[Gid] = []
    netdev: str | None = None
    bond: str | None = None
    umad: str | None = None
    counters: dict[str, int] = {}

    @property
    def name(self) -> str:
        return f"{self.hca}:{self.port}"

    @property
    def active(self) -> bool:
        return self.state == ACTIVE


class Hca(msgspec.Struct, kw_only=True):
    """One adapter. ``software`` ones (rxe, siw) have no hardware; ``image`` is the same for all functions of a card."""

    name: str
    node_type: str
    guid: str
    image: str
    description: str = ""
    firmware: str = ""
    model: str = ""
    board: str = ""
    software: bool = False
    pci: PciDevice | None = None
    ports: list[Port] = []

    @property
    def virtual(self) -> bool:
        """A virtual function whose physical function is on this host too: meant for a guest."""
        return self.pci is not None and self.pci.physical is not None


def read(tree: Tree) -> list[Hca]:
    masters = _masters(tree)
    return [_hca(tree, name, masters) for name in tree.names("class/infiniband")]


def _hca(tree: Tree, name: str, masters: dict[str, str]) -> Hca:
    place = f"class/infiniband/{name}"
    device = tree.real(place, "device")
    pci = None if device is None else read_one(tree, device)
    return Hca(
        name=name,
        node_type=_word(tree.text(place, "node_type")),
        guid=_guid(tree.text(place, "node_guid")),
        image=_guid(tree.text(place, "sys_image_guid")),
        description=tree.text(place, "node_desc") or "",
        firmware=tree.text(place, "fw_ver") or "",
        model=tree.text(place, "hca_type") or "",
        board=tree.text(place, "board_id") or "",
        software=device is None,
        pci=pci,
        ports=[_port(tree, name, int(port), device, masters) for port in tree.names(place, "ports") if port.isdigit()],
    )


def _word(text: str | None) -> str:
    """``4: ACTIVE`` is ``ACTIVE``."""
    return (text or "").rpartition(":")[2].strip()


def _guid(text: str | None) -> str:
    """``0c42:a103:0000:0000`` is ``0c42a10300000000``."""
    return (text or "").replace(":", "").lower()


def rate_of(text: str | None) -> float | None:
    """``400 Gb/sec (4X NDR)`` is 400."""
    match = re.match(r"\s*(\d+(?:\.\d+)?)\s*Gb/sec", text or "")
    return float(match[1]) if match else None


def _port(tree: Tree, hca: str, number: int, device: str | None, masters: dict[str, str]) -> Port:
    place = f"class/infiniband/{hca}/ports/{number}"
    state = _word(tree.text(place, "state"))
    link_layer = tree.text(place, "link_layer") or "InfiniBand"
    gids = _gids(tree, place)
    port = Port(
        hca=hca,
        port=number,
        state=state,
        phys_state=_word(tree.text(place, "phys_state")),
        link_layer=link_layer,
        gids=gids,
        guid=gids[0].gid.replace(":", "")[16:] if gids and gids[0].index == 0 else None,
        netdev=_netdev(tree, hca, number, device, gids),
        umad=_umad(tree, hca, number),
        counters=read_counters(tree, hca, number),
    )
    if port.netdev is not None:
        port.bond = port.netdev if tree.has("class/net", port.netdev, "bonding") else masters.get(port.netdev)
    if port.active:
        port.rate_text = tree.text(place, "rate") or ""
        port.rate = rate_of(port.rate_text)
        port.lid = _lid(tree.number(place, "lid"))
        port.sm_lid = _lid(tree.number(place, "sm_lid"))
    else:
        port.was_up = _lid(tree.number(place, "lid")) is not None
    return port


def _lid(value: int | None) -> int | None:
    return None if value is None or value in _NO_LID else value


def _gids(tree: Tree, place: str) -> list[Gid]:
    """The GIDs that are set. An entry that is not answers zeros, its attributes EINVAL."""
    found = []
    for name in tree.names(place, "gids"):
        gid = tree.text(place, "gids", name)
        if not name.isdigit() or not gid or not gid.replace(":", "").strip("0"):
            continue
        # fe80:: with nothing behind it is an empty entry too.
        if not gid.replace(":", "")[16:].strip("0"):
            continue
        kind = tree.text(place, "gid_attrs/types", name)
        found.append(Gid(index=int(name), gid=gid, kind=kind or None, netdev=tree.text(place, "gid_attrs/ndevs", name) or None))
    return found


def _netdev(tree: Tree, hca: str, number: int, device: str | None, gids: list[Gid]) -> str | None:
    """The network interface of a port: by GID (right for RoCE bonds), by port number on the same card, by IPoIB address."""
    for gid in gids:
        if gid.netdev:
            return gid.netdev
    if device is None:
        return tree.text("class/infiniband", hca, "parent") or None
    own = tree.names(device, "net")
    guid = gids[0].gid.replace(":", "")[16:] if gids else ""
    for name in own:
        address = (tree.text("class/net", name, "address") or "").replace(":", "")
        if tree.number("class/net", name, "type") == _IPOIB and len(address) == 40 and address[24:] == guid:
            return name
    for name in own:
        at = tree.number("class/net", name, "dev_port")
        # Drivers before dev_port existed numbered ports in dev_id.
        at = tree.number("class/net", name, "dev_id") if at is None else at
        if at is not None and at + 1 == number:
            return name
    return None


def _umad(tree: Tree, hca: str, number: int) -> str | None:
    for name in tree.names("class/infiniband_mad"):
        place = f"class/infiniband_mad/{name}"
        if name.startswith("umad") and tree.text(place, "ibdev") == hca and tree.number(place, "port") == number:
            return name
    return None


def _masters(tree: Tree) -> dict[str, str]:
    """Interface → the bond it is part of."""
    return {
        name: master.rpartition("/")[2]
        for name in tree.names("class/net")
        if (master := tree.real("class/net", name, "master")) is not None and tree.has(master, "bonding")
    }


def read_counters(tree: Tree, hca: str, number: int) -> dict[str, int]:
    """All counters of a port; data counters in bytes, named ``port_xmit_bytes`` and ``port_rcv_bytes``."""
    found: dict[str, int] = {}
    for folder in ("counters", "hw_counters"):
        place = f"class/infiniband/{hca}/ports/{number}/{folder}"
        for name in tree.names(place):
            value = tree.number(place, name)
            if value is None or name == "lifespan":
                continue
            if name in _WORDS:
                found[name.replace("_data", "_bytes")] = value * 4
            else:
                found.setdefault(name, value)
    return found
