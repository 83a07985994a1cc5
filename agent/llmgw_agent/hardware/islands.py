"""NVLink islands: which GPUs reach each other over NVLink. Pure: facts in, islands and findings out.

1. Lost GPUs and GPUs cut by MIG are left out; the others are grouped by model, memory and compute capability.
2. A live link leads to a GPU of this host (an edge), or to a switch. What the driver cannot or will not name is a switch.
3. GPUs on a switch form one island, but only when the NVLink fabric has let them in (:mod:`nvlink_fabric`).
4. Otherwise the connected components of the edges are the islands.
5. Peer access is the cross-check: where it disagrees with the links it is believed, and the disagreement is a problem.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from llmgw_agent.hardware.cliques import tp_groups
from llmgw_agent.hardware.conditions import Findings, subject
from llmgw_agent.hardware.nvlink_fabric import Membership, domain_of
from llmgw_agent.hardware.problems import Code
from llmgw_agent.hardware.raw import Gpu, Link, Links, Pair

SWITCH = "switch"
ABSENT = "absent"
REMOTE_NPU, REMOTE_SWITCH = 1, 2
_NVLINK_OK = 0

Edge = tuple[int, int]


@dataclass(frozen=True)
class Island:
    """GPUs (by index) that reach each other over NVLink, with ``groups`` fit for tensor parallelism, best first."""

    gpus: tuple[int, ...]
    all_to_all: bool
    switched: bool
    domain: str | None
    groups: tuple[tuple[int, ...], ...]


@dataclass
class NvlinkView:
    """Islands, and for each pair of GPUs how many links join them (through a switch: the lesser of both ends' counts)."""

    islands: list[Island] = field(default_factory=list)
    joined: dict[Edge, int] = field(default_factory=dict)
    switch_links: dict[int, int] = field(default_factory=dict)
    direct: dict[Edge, int] = field(default_factory=dict)


def remote_end(link: Link, by_pci: dict[str, int], absent_gpu: Callable[[str], bool]) -> int | str:
    """Where a live link leads: a GPU's index, :data:`SWITCH`, or :data:`ABSENT` for a device that is no partner here."""
    if link.remote_type == REMOTE_SWITCH:
        return SWITCH
    if link.remote_type == REMOTE_NPU:
        return ABSENT
    if link.remote is None:
        return SWITCH
    if link.remote in by_pci:
        return by_pci[link.remote]
    # A GPU of this host that NVML could not open (lost, say) is no switch.
    return ABSENT if absent_gpu(link.remote) else SWITCH


def view(
    gpus: dict[int, Gpu],
    links: dict[int, Links],
    pairs: Iterable[Pair],
    membership: dict[int, Membership],
    absent_gpu: Callable[[str], bool],
    findings: Findings,
) -> NvlinkView:
    """Derives the islands.

    ``membership`` says of each GPU whether the NVLink fabric has let it in; ``absent_gpu`` whether a PCI address that NVML does
    not list is a GPU all the same.
    """
    usable = {index: gpu for index, gpu in gpus.items() if _usable(gpu)}
    by_pci = {gpu.pci: index for index, gpu in gpus.items() if gpu.pci}
    found = NvlinkView()
    toward: Counter[Edge] = Counter()
    for index in usable:
        for link in links[index].links if index in links else []:
            if not link.up or link.p2p is False:
                continue
            end = remote_end(link, by_pci, absent_gpu)
            if end == SWITCH:
                found.switch_links[index] = found.switch_links.get(index, 0) + 1
            elif isinstance(end, int) and end != index:
                toward[index, end] += 1
    _direct(found, toward, usable, findings)
    told = {(min(pair.a, pair.b), max(pair.a, pair.b)): pair.nvlink for pair in pairs}
    for group in _alike(usable):
        found.islands += _islands(group, usable, found, told, membership, findings)
    found.islands.sort(key=lambda island: island.gpus)
    return found


def _usable(gpu: Gpu) -> bool:
    return not gpu.error and gpu.uuid is not None and not (gpu.mig is not None and gpu.mig.current)


def _direct(found: NvlinkView, toward: Counter[Edge], usable: dict[int, Gpu], findings: Findings) -> None:
    for one, other in sorted({(min(pair), max(pair)) for pair in toward}):
        there, back = toward[one, other], toward[other, one]
        if other not in usable or one not in usable:
            continue
        if there != back:
            findings.problem(
                Code.NVLINK_ASYMMETRIC,
                subject(usable[one]),
                f"{there} NVLinks lead to {subject(usable[other])}, {back} lead back: check the bridge or baseboard",
            )
        if weight := min(there, back):
            found.direct[one, other] = weight


def _alike(usable: dict[int, Gpu]) -> list[list[int]]:
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, gpu in sorted(usable.items()):
        groups.setdefault((gpu.name, gpu.memory_total, tuple(gpu.cc or ())), []).append(index)
    return list(groups.values())


def _islands(
    group: list[int],
    usable: dict[int, Gpu],
    found: NvlinkView,
    told: dict[Edge, int | None],
    membership: dict[int, Membership],
    findings: Findings,
) -> list[Island]:
    waiting = {index for index in group if found.switch_links.get(index) and not membership[index].ready}
    weights: dict[Edge, int] = {}
    for at, one in enumerate(group):
        for other in group[at + 1 :]:
            if one in waiting or other in waiting:
                continue
            switched = min(found.switch_links.get(one, 0), found.switch_links.get(other, 0))
            linked = found.direct.get((one, other), 0) + (switched if _same_fabric(one, other, membership) else 0)
            peer = told.get((one, other))
            if peer is not None and (peer == _NVLINK_OK) != (linked > 0):
                _disagree(usable[one], usable[other], linked, findings)
                linked = 1 if peer == _NVLINK_OK else 0
            if linked:
                weights[one, other] = linked
    found.joined |= weights
    islands = []
    for part in _components(group, weights):
        full = all((one, other) in weights for at, one in enumerate(part) for other in part[at + 1 :])
        switched = all(found.switch_links.get(index) for index in part)
        groups = (tuple(part),) if full else tp_groups(part, weights)
        islands.append(Island(tuple(part), full, switched, domain_of([membership[index] for index in part]), groups))
    return islands


def _same_fabric(one: int, other: int, membership: dict[int, Membership]) -> bool:
    return membership[one].partition == membership[other].partition


def _disagree(one: Gpu, other: Gpu, linked: int, findings: Findings) -> None:
    links = f"{linked} NVLinks join them" if linked else "no NVLink joins them"
    peer = "not possible" if linked else "possible"
    findings.problem(
        Code.NVLINK_P2P_DISAGREE,
        subject(one),
        f"{links} (this GPU and {subject(other)}), but the driver says that NVLink peer access is {peer}; it is believed",
    )


def _components(group: list[int], weights: dict[Edge, int]) -> list[list[int]]:
    """Connected components of two or more, each sorted."""
    parts: list[list[int]] = []
    left = list(group)
    while left:
        part, frontier = {left[0]}, [left[0]]
        while frontier:
            at = frontier.pop()
            for edge in weights:
                if at in edge:
                    other = edge[0] if edge[1] == at else edge[1]
                    if other not in part:
                        part.add(other)
                        frontier.append(other)
        left = [index for index in left if index not in part]
        if len(part) > 1:
            parts.append(sorted(part))
    return parts
