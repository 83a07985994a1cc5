"""PCI devices that matter (GPUs, NVSwitches, network and RDMA cards) and how far they are from each other."""

from __future__ import annotations

import re

import msgspec

from llmgw_agent.hardware.sysfs import Tree

ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
NVIDIA = 0x10DE
_GPU_CLASSES = (0x0300, 0x0302)
_NVSWITCH_CLASS = 0x0680
_NETWORK = 0x02


class PciDevice(msgspec.Struct, kw_only=True):
    """``path`` leads from the root complex (``pci0000:20``) over bridges to the device itself. Speeds in GT/s per lane."""

    address: str
    path: list[str]
    vendor: int | None
    device: int | None
    kind: int | None
    numa: int | None = None
    cpus: str = ""
    speed: float | None = None
    max_speed: float | None = None
    width: int | None = None
    max_width: int | None = None
    #: The most lanes that the port above the device has; a card of 16 lanes in a slot of 8 is not degraded.
    slot_width: int | None = None
    driver: str | None = None
    #: The physical function, when this is a virtual one of this host.
    physical: str | None = None
    virtual_functions: int = 0

    @property
    def is_gpu(self) -> bool:
        return self.vendor == NVIDIA and self.kind in _GPU_CLASSES

    @property
    def is_nvswitch(self) -> bool:
        return self.vendor == NVIDIA and self.kind == _NVSWITCH_CLASS


def read(tree: Tree) -> dict[str, PciDevice]:
    """The devices by address."""
    found: dict[str, PciDevice] = {}
    for address in tree.names("bus/pci/devices"):
        kind = _class(tree, "bus/pci/devices", address)
        if kind is None or not (kind >> 8 == _NETWORK or kind in (*_GPU_CLASSES, _NVSWITCH_CLASS)):
            continue
        place = tree.real("bus/pci/devices", address)
        device = None if place is None else read_one(tree, place)
        if device is not None:
            found[device.address] = device
    return found


def read_one(tree: Tree, place: str) -> PciDevice | None:
    """The device at a path such as ``devices/pci0000:20/0000:20:00.0/0000:22:00.0``; None when it is none of PCI."""
    parts = place.split("/")
    path = [part for part in parts if ADDRESS.fullmatch(part) or re.fullmatch(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}", part)]
    if not path or not ADDRESS.fullmatch(parts[-1]):
        return None
    above = "/".join(parts[:-1])
    numa = tree.number(place, "numa_node")
    physical = tree.real(place, "physfn")
    driver = tree.real(place, "driver")
    return PciDevice(
        address=parts[-1],
        path=path,
        vendor=tree.number(place, "vendor"),
        device=tree.number(place, "device"),
        kind=_class(tree, place),
        numa=None if numa is None or numa < 0 else numa,
        cpus=tree.text(place, "local_cpulist") or "",
        speed=gigatransfers(tree.text(place, "current_link_speed")),
        max_speed=gigatransfers(tree.text(place, "max_link_speed")),
        width=tree.number(place, "current_link_width"),
        max_width=tree.number(place, "max_link_width"),
        slot_width=tree.number(above, "max_link_width") if len(path) > 2 else None,
        driver=None if driver is None else driver.rpartition("/")[2],
        physical=None if physical is None else physical.rpartition("/")[2],
        virtual_functions=tree.number(place, "sriov_numvfs") or 0,
    )


def _class(tree: Tree, *place: str) -> int | None:
    value = tree.number(*place, "class")
    return None if value is None else value >> 8


def gigatransfers(text: str | None) -> float | None:
    """``32.0 GT/s PCIe`` is 32.0; ``Unknown`` is None."""
    match = re.match(r"\s*(\d+(?:\.\d+)?)\s*GT/s", text or "")
    return float(match[1]) if match else None


#: From near to far; the words of ``nvidia-smi topo``.
DISTANCES = ("PIX", "PXB", "PHB", "NODE", "SYS", "UNKNOWN")


def distance(one: list[str], other: list[str], numa: tuple[int | None, int | None], nodes: int) -> str:
    """How two devices reach each other over PCIe.

    PIX: through one switch. PXB: through several. PHB: through a host bridge. NODE: within a NUMA node. SYS: between NUMA
    nodes. UNKNOWN: the firmware does not tell the nodes. ``nodes`` is how many the host has.
    """
    shared = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        shared += 1
    if shared >= 2:
        return "PIX" if max(len(one), len(other)) - shared <= 2 else "PXB"
    if shared == 1:
        return "PHB"
    if nodes <= 1:
        return "NODE"
    if None in numa:
        return "UNKNOWN"
    return "NODE" if numa[0] == numa[1] else "SYS"
