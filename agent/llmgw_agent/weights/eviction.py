"""Which weights go when room is needed. Decisions only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Kept:
    """What one source occupies: ``blobs`` maps each content to its size in bytes; ``fixed`` things never go."""

    key: str
    last_used: float
    blobs: Mapping[str, int]
    fixed: bool


def occupied(kept: Iterable[Kept]) -> int:
    """Bytes on the disk; content that several sources share counts once."""
    return sum({blob: size for each in kept for blob, size in each.blobs.items()}.values())


def choose(kept: Sequence[Kept], *, to_free: int) -> list[str] | None:
    """The keys to remove, least recently used first, so that at least ``to_free`` bytes become free.

    None when all that may go is not enough: then nothing should go, since it would not help.
    """
    if to_free <= 0:
        return []
    users = Counter(blob for each in kept for blob in each.blobs)
    candidates = sorted((one for one in kept if not one.fixed), key=lambda one: (one.last_used, one.key))
    chosen: list[Kept] = []
    freed = 0
    for each in candidates:
        if freed >= to_free:
            break
        chosen.append(each)
        freed += _let_go(each, users)
    if freed < to_free:
        return None
    # Some of the older ones may have freed nothing that the last one does not make up for: the most recent of them stay.
    for each in reversed(chosen[:-1]):
        spared = _take_back(each, users)
        if freed - spared >= to_free:
            chosen.remove(each)
            freed -= spared
        else:
            _let_go(each, users)
    return [each.key for each in chosen]


def _let_go(kept: Kept, users: Counter[str]) -> int:
    users.subtract(kept.blobs.keys())
    return sum(size for blob, size in kept.blobs.items() if users[blob] == 0)


def _take_back(kept: Kept, users: Counter[str]) -> int:
    freed = sum(size for blob, size in kept.blobs.items() if users[blob] == 0)
    users.update(kept.blobs.keys())
    return freed
