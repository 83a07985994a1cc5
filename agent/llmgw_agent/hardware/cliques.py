"""Groups for tensor parallelism inside an island where not every GPU reaches every other."""

from __future__ import annotations

from functools import cache
from itertools import combinations

Edge = tuple[int, int]

SIZES = (8, 4, 2)
_EXACT_UP_TO = 12


def tp_groups(gpus: list[int], weights: dict[Edge, int]) -> tuple[tuple[int, ...], ...]:
    """Disjoint groups of 8, else 4, else 2 GPUs in which each reaches each, covering as many GPUs as possible, then most links.

    The largest size that occurs is used up first; what is left is grouped with the next size. Sorted by size, then by GPU.
    """
    groups: list[tuple[int, ...]] = []
    left = sorted(gpus)
    for size in SIZES:
        chosen = _cover(tuple(left), size, weights)
        groups += chosen
        left = [gpu for gpu in left if not any(gpu in group for group in chosen)]
    return tuple(groups)


def _weight(group: tuple[int, ...], weights: dict[Edge, int]) -> int | None:
    """The links inside the group, or None when two of its GPUs are not joined."""
    total = 0
    for edge in combinations(group, 2):
        if edge not in weights:
            return None
        total += weights[edge]
    return total


def _cover(gpus: tuple[int, ...], size: int, weights: dict[Edge, int]) -> list[tuple[int, ...]]:
    cliques = {}
    for group in combinations(gpus, size):
        weight = _weight(group, weights)
        if weight is not None:
            cliques[group] = weight
    if not cliques:
        return []
    if len(gpus) > _EXACT_UP_TO:
        return _greedy(cliques)

    @cache
    def best(left: tuple[int, ...]) -> tuple[int, int, tuple[tuple[int, ...], ...]]:
        if not left:
            return 0, 0, ()
        first, rest = left[0], left[1:]
        found = best(rest)
        for group, weight in cliques.items():
            if group[0] == first and set(group[1:]) <= set(rest):
                count, total, chosen = best(tuple(gpu for gpu in rest if gpu not in group))
                if (count + 1, total + weight) > found[:2]:
                    found = count + 1, total + weight, (group, *chosen)
        return found

    return list(best(gpus)[2])


def _greedy(cliques: dict[tuple[int, ...], int]) -> list[tuple[int, ...]]:
    """For boxes too big to try all: heaviest first."""
    chosen: list[tuple[int, ...]] = []
    taken: set[int] = set()
    for group, _ in sorted(cliques.items(), key=lambda each: (-each[1], each[0])):
        if not taken & set(group):
            chosen.append(group)
            taken |= set(group)
    return sorted(chosen)
