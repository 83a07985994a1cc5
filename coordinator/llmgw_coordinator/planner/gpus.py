"""Which GPUs of a node a replica gets: all of one class, and together where NVLink or the board joins them.

=====  ===================================================================================================
tier   the GPUs chosen are
=====  ===================================================================================================
0      in one group whose GPUs all reach each other over NVLink; a single GPU always is
1      in one NVLink island
2      of one class, joined by PCIe only, or over several islands because none of the node's is that large
=====  ===================================================================================================

An island that is large enough but partly taken is waited for: GPUs across islands are slow for as long as the replica lives.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from llmgw_proto.records import GpuFacts, InventoryRecord

#: The tier and the GPUs.
Choice: TypeAlias = tuple[int, list[GpuFacts]]


@dataclass(frozen=True, slots=True)
class Kind:
    """The GPUs of one class on one node."""

    name: str
    uuids: frozenset[str]
    islands: tuple[frozenset[str], ...] = ()
    groups: tuple[frozenset[str], ...] = ()
    single: bool = False
    """Parts of a GPU (MIG), which cannot work together."""


def class_of(gpu: GpuFacts) -> str:
    return gpu.gpu_class or gpu.name


def same_class(one: str, other: str) -> bool:
    return one.casefold() == other.casefold()


def is_part(gpu: GpuFacts) -> bool:
    """Whether it is an instance of MIG and not a whole GPU."""
    return gpu.uuid.startswith("MIG-") or "-MIG-" in gpu.gpu_class


def kinds_of(inventory: InventoryRecord) -> list[Kind]:
    """By name."""
    members: dict[str, list[GpuFacts]] = {}
    for gpu in inventory.gpus:
        members.setdefault(class_of(gpu), []).append(gpu)
    islands = _sets(inventory, "islands")
    groups = _sets(inventory, "tp_groups")
    kinds = []
    for name, gpus in sorted(members.items()):
        uuids = frozenset(gpu.uuid for gpu in gpus)
        kinds.append(
            Kind(
                name,
                uuids,
                tuple(shared for each in islands if len(shared := each & uuids) > 1),
                tuple(shared for each in groups if len(shared := each & uuids) > 1),
                any(is_part(gpu) for gpu in gpus),
            )
        )
    return kinds


def _sets(inventory: InventoryRecord, field: str) -> list[frozenset[str]]:
    """What the agent's description of the hardware lists under ``islands`` or ``tp_groups``, as far as it can be read."""
    found = []
    listed = inventory.topology.get(field)
    for each in listed if isinstance(listed, list) else []:
        uuids = each.get("uuids") if isinstance(each, dict) else each
        if isinstance(uuids, list):
            found.append(frozenset(uuid for uuid in uuids if isinstance(uuid, str)))
    return found


def choose(free: Sequence[GpuFacts], count: int, kinds: Iterable[Kind], wanted: str | None = None) -> Choice | None:
    """The best choice among the free GPUs, of the class ``wanted`` if that is given; None if they cannot be had together."""
    if count == 0:
        return 0, []
    best: tuple[int, int, list[GpuFacts]] | None = None
    for kind in kinds:
        if wanted is not None and not same_class(kind.name, wanted):
            continue
        mine = [gpu for gpu in free if gpu.uuid in kind.uuids]
        found = _within(mine, count, kind) if len(mine) >= count else None
        if found is not None and (best is None or (found[0], len(found[1])) < best[:2]):
            best = (found[0], len(found[1]), found[1])
    return (best[0], near(best[2], count)) if best is not None else None


def _within(mine: list[GpuFacts], count: int, kind: Kind) -> Choice | None:
    """The tier and the smallest set of free GPUs of the kind to choose from."""
    if count > 1 and kind.single:
        return None
    if count == 1:
        joined = kind.groups or kind.islands
        loose = [gpu for gpu in mine if not any(gpu.uuid in each for each in joined)]
        sets = [loose, *([gpu for gpu in mine if gpu.uuid in each] for each in joined)]
        return 0, min((each for each in sets if each), key=len)
    for tier, joined in enumerate((kind.groups, kind.islands)):
        sets = [[gpu for gpu in mine if gpu.uuid in each] for each in joined]
        fitting = [each for each in sets if len(each) >= count]
        if fitting:
            return tier, min(fitting, key=len)
    if any(len(island) >= count for island in kind.islands):
        return None
    return 2, mine


def near(pool: Sequence[GpuFacts], count: int) -> list[GpuFacts]:
    """GPUs of one NUMA domain if one has enough, the fullest such domain first, so that whole domains stay free."""
    domains: dict[int | None, list[GpuFacts]] = {}
    for gpu in pool:
        domains.setdefault(gpu.numa, []).append(gpu)
    fitting = [each for each in domains.values() if len(each) >= count]
    chosen = min(fitting, key=lambda each: (len(each), _order(each[0]))) if fitting else list(pool)
    return sorted(chosen, key=_order)[:count]


def _order(gpu: GpuFacts) -> tuple[str, str]:
    return gpu.pci, gpu.uuid
