"""Builds sysfs trees from compact descriptions: PCI switches with GPUs and adapters, NUMA nodes, ports, bonds."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

#: PCI ids.
H100_ID, CX7_ID, CX6_VF_ID, E810_ID = 0x2330, 0x1021, 0x101C, 0x1592


class SysfsTree:
    """One host. Methods add to it; paths of devices are ``devices/pci0000:15/0000:15:01.0/…``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in ("bus/pci/devices", "class/net", "class/infiniband", "class/infiniband_mad", "devices/system/node"):
            (root / folder).mkdir(parents=True, exist_ok=True)
        self._cards = 0

    def write(self, place: str, **values: object) -> None:
        """Files below ``place``; a double underscore in a name is a slash."""
        for name, value in values.items():
            path = self.root / place / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{value}\n")

    def link(self, place: str, target: str) -> None:
        """A relative link, as sysfs has them."""
        path = self.root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        # Resolved: the folder may itself be reached through a link.
        path.symlink_to(os.path.relpath((self.root / target).resolve(), path.parent.resolve()))

    def numa(self, *cpus: str) -> None:
        """One node per CPU list; an empty list is a node that is only memory."""
        for node, text in enumerate(cpus):
            self.write(f"devices/system/node/node{node}", cpulist=text, distance=" ".join("10" for _ in cpus))

    def device(self, path: str, kind: int, vendor: int, device: int, numa: int = -1, cpus: str = "", **more: object) -> str:
        """A PCI device at ``pci0000:15/0000:15:01.0/0000:1b:00.0``; bridges on the way are made. The place below the root."""
        parts = path.split("/")
        for at in range(1, len(parts) - 1):
            bridge = "devices/" + "/".join(parts[: at + 1])
            if not (self.root / bridge / "class").exists():
                self.write(bridge, **{"class": "0x060400", "numa_node": numa, "max_link_width": 16, "current_link_width": 16})
                self.link(f"bus/pci/devices/{parts[at]}", bridge)
        place = f"devices/{path}"
        values = {"class": f"0x{kind:04x}00", "vendor": f"0x{vendor:04x}", "device": f"0x{device:04x}", "numa_node": numa}
        self.write(place, **values | {"local_cpulist": cpus} | more)
        self.link(f"bus/pci/devices/{parts[-1]}", place)
        return place

    def gpu(self, path: str, numa: int = -1, cpus: str = "", **more: object) -> str:
        width = {"current_link_speed": "2.5 GT/s PCIe", "max_link_speed": "32.0 GT/s PCIe", "current_link_width": 16}
        return self.device(path, 0x0302, 0x10DE, H100_ID, numa, cpus, **width | {"max_link_width": 16} | more)

    def hca(
        self,
        name: str,
        path: str,
        numa: int = -1,
        *,
        layer: str = "InfiniBand",
        ports: int = 1,
        guid: int | None = None,
        image: int | None = None,
        model: str = "MT4129",
        device: int = CX7_ID,
        cpus: str = "",
        port: Mapping[str, object] | None = None,
    ) -> str:
        """An adapter and its ports, active at 400 Gb/s unless ``port`` values say otherwise; the place of its PCI device."""
        self._cards += 1
        guid = 0x0C42A10300000000 + self._cards * 0x100 if guid is None else guid
        infiniband = layer == "InfiniBand"
        place = self.device(path, 0x0207 if infiniband else 0x0200, 0x15B3, device, numa, cpus)
        own = f"{place}/infiniband/{name}"
        self.write(
            own,
            node_type="1: CA",
            node_guid=_guid(guid),
            sys_image_guid=_guid(guid if image is None else image),
            hca_type=model,
            fw_ver="28.39.1002",
            board_id="MT_0000000838",
            node_desc=f"host {name}",
        )
        self.link(f"{own}/device", place)
        self.link(f"class/infiniband/{name}", own)
        for number in range(1, ports + 1):
            self.port(own, number, layer, guid + number - 1, **(port or {}))
            umad = f"umad{len(list((self.root / 'class/infiniband_mad').iterdir()))}"
            self.write(f"class/infiniband_mad/{umad}", ibdev=name, port=number)
        return place

    def port(self, own: str, number: int, layer: str, guid: int, **values: object) -> None:
        state = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)", "link_layer": layer}
        infiniband = layer == "InfiniBand"
        state |= {"lid": hex(6 + number) if infiniband else "0x0", "sm_lid": "0x1" if infiniband else "0x0"}
        counters = {"counters__symbol_error": 0, "counters__link_downed": 0, "counters__port_xmit_data": 1000}
        prefix = "fe80:0000:0000:0000:"
        self.write(f"{own}/ports/{number}", gids__0=prefix + _guid(guid), **state | counters | values)

    def netdev(self, name: str, place: str | None = None, **values: object) -> None:
        """An interface on a card, or a virtual one."""
        own = f"{place}/net/{name}" if place else f"devices/virtual/net/{name}"
        facts: dict[str, object] = {"type": 1, "operstate": "up", "mtu": 1500, "dev_port": 0, "address": "0c:42:a1:00:00:01"}
        self.write(own, **facts | values)
        if place:
            self.link(f"{own}/device", place)
        self.link(f"class/net/{name}", own)

    def bond(self, name: str, *members: str) -> None:
        self.netdev(name, bonding__slaves=" ".join(members), address="0c:42:a1:00:00:02")
        for member in members:
            self.link(f"class/net/{member}/master", f"class/net/{name}")

    def software_rdma(self, name: str, netdev: str) -> None:
        """A rxe or siw device: no card behind it, no counters of the hardware kind."""
        own = f"devices/virtual/infiniband/{name}"
        self.write(own, node_type="1: CA", node_guid="5054:00ff:feaa:0002", sys_image_guid="5054:00ff:feaa:0002", parent=netdev)
        self.write(
            f"{own}/ports/1", state="4: ACTIVE", phys_state="5: LinkUp", rate="2.5 Gb/sec (1X SDR)", link_layer="Ethernet"
        )
        self.write(f"{own}/ports/1", lid="0x0", sm_lid="0x0", gids__0="fe80:0000:0000:0000:5054:00ff:feaa:0002")
        self.link(f"class/infiniband/{name}", own)

    def virtual_function(self, place: str, physical: str) -> None:
        self.link(f"{place}/physfn", physical)


def _guid(value: int) -> str:
    digits = f"{value:016x}"
    return ":".join(digits[at : at + 4] for at in range(0, 16, 4))


def from_umockdev(text: str, root: Path) -> None:
    """Writes the tree that a umockdev record describes (P: place, A: attribute, L: link)."""
    place = ""
    for line in text.splitlines():
        kind, _, rest = line.partition(": ")
        if kind == "P":
            place = rest.lstrip("/")
            (root / place).mkdir(parents=True, exist_ok=True)
            _classify(root, place)
        elif kind == "A":
            name, _, value = rest.partition("=")
            path = root / place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(value.replace("\\n", "\n"))
        elif kind == "L":
            name, _, target = rest.partition("=")
            (root / place / name).symlink_to(target)


def _classify(root: Path, place: str) -> None:
    """The link below /sys/class or /sys/bus that leads to a device."""
    parts = place.split("/")
    folder = f"class/{parts[-2]}" if parts[-2] in ("net", "infiniband", "infiniband_mad") else "bus/pci/devices"
    link = root / folder / parts[-1]
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(os.path.relpath(root / place, link.parent))
