"""NUMA nodes, and which of them a device belongs to."""

from __future__ import annotations

import msgspec

from llmgw_agent.hardware.sysfs import Tree


class NumaNode(msgspec.Struct):
    """``cpus`` is a list such as ``0-31,64-95``, empty for a node that is only memory (the HBM of a coherent GPU)."""

    node: int
    cpus: str
    distances: list[int] = []
    memory_bytes: int | None = None
    huge_pages: dict[str, list[int]] = {}


def read(tree: Tree) -> list[NumaNode]:
    nodes = []
    for name in tree.names("devices/system/node"):
        if not name.startswith("node") or not name[4:].isdigit():
            continue
        place = f"devices/system/node/{name}"
        distances = [int(each) for each in (tree.text(place, "distance") or "").split() if each.isdigit()]
        nodes.append(
            NumaNode(
                node=int(name[4:]),
                cpus=tree.text(place, "cpulist") or "",
                distances=distances,
                memory_bytes=_memory(tree.text(place, "meminfo")),
                huge_pages=_huge_pages(tree, place),
            )
        )
    return nodes


def _memory(meminfo: str | None) -> int | None:
    for line in (meminfo or "").splitlines():
        if "MemTotal:" in line:
            return int(line.split()[-2]) * 1024
    return None


def _huge_pages(tree: Tree, place: str) -> dict[str, list[int]]:
    """Page size in kB → [total, free], for sizes that are set up."""
    pages = {}
    for name in tree.names(place, "hugepages"):
        total = tree.number(place, "hugepages", name, "nr_hugepages")
        if total:
            pages[name.removeprefix("hugepages-").removesuffix("kB")] = [
                total,
                tree.number(place, "hugepages", name, "free_hugepages") or 0,
            ]
    return pages


def cpus(text: str) -> frozenset[int]:
    """Reads a CPU list: ``0-2,8`` is {0, 1, 2, 8}."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdigit():
            found.update(range(int(first), int(last) + 1 if last.isdigit() else int(first) + 1))
    return frozenset(found)


def cpu_list(numbers: frozenset[int]) -> str:
    """Writes a CPU list: {0, 1, 2, 8} is ``0-2,8``."""
    parts: list[str] = []
    ordered = sorted(numbers)
    start = 0
    for at, number in enumerate(ordered):
        if at + 1 == len(ordered) or ordered[at + 1] != number + 1:
            parts.append(str(number) if start == at else f"{ordered[start]}-{number}")
            start = at + 1
    return ",".join(parts)


def node_of(nodes: list[NumaNode], said: int | None, near: frozenset[int]) -> int | None:
    """The node of a device: what sysfs says, else the node of the CPUs near it, else the only one there is.

    A node without CPUs is never the answer: on coherent GPUs that is their own memory, and nothing can run there.
    """
    with_cpus = {node.node: cpus(node.cpus) for node in nodes if node.cpus}
    if said is not None and (said in with_cpus or not nodes):
        return said
    holding = [node for node, own in with_cpus.items() if near and near <= own]
    if len(holding) == 1:
        return holding[0]
    return next(iter(with_cpus)) if len(with_cpus) == 1 else None
