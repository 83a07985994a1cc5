"""The helper process that reads sysfs, /proc and netlink once: ``python -m llmgw_agent.hardware.host_probe OPTIONS_AS_JSON``.

It prints one JSON object. A separate process, because reading a counter of a card whose firmware hangs can block for ever.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from llmgw_agent.hardware import host, netdev, numa, pci, rdma
from llmgw_agent.hardware.sysfs import Tree


class Options(msgspec.Struct):
    """``paths``: folders whose file systems to report. ``peers``: IP addresses whose routes are wanted."""

    sysfs_root: str = "/sys"
    paths: list[str] = []
    peers: list[str] = []


class HostFacts(msgspec.Struct, kw_only=True):
    """All that sysfs, /proc and netlink tell."""

    host: host.Host
    pci: dict[str, pci.PciDevice] = {}
    numa: list[numa.NumaNode] = []
    hcas: list[rdma.Hca] = []
    netdevs: list[netdev.Netdev] = []
    default_route: str | None = None
    #: Peer → [interface, own address] used to reach it.
    routes: dict[str, list[str]] = {}
    imex_channels: bool = False


def look(options: Options) -> HostFacts:
    tree = Tree(Path(options.sysfs_root))
    facts = HostFacts(
        host=host.read(tree, options.paths),
        pci=pci.read(tree),
        numa=numa.read(tree),
        hcas=rdma.read(tree),
        netdevs=netdev.read(tree),
        imex_channels=any(Path("/dev/nvidia-caps-imex-channels").glob("channel*")),
    )
    for hca in facts.hcas:
        if hca.pci is not None:
            facts.pci.setdefault(hca.pci.address, hca.pci)
    # Another tree is another host: this kernel's addresses and routes do not belong to it.
    if options.sysfs_root == "/sys":
        _netlink(facts, options.peers)
    return facts


def _netlink(facts: HostFacts, peers: list[str]) -> None:
    # Imported here: half of this helper's start, and not needed for another tree.
    from llmgw_agent.hardware import netlink

    found = netlink.read(peers)
    for device in facts.netdevs:
        link = found.links.get(device.name)
        if link is not None:
            device.kind, device.addresses = link.kind, link.addresses
    facts.default_route = found.routes.default
    facts.routes = found.routes.toward


def main(argv: list[str]) -> int:
    options = msgspec.json.decode(argv[1], type=Options) if len(argv) > 1 else Options()
    sys.stdout.buffer.write(msgspec.json.encode(look(options)) + b"\n")
    sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
