"""Approximate prefix affinity: a prompt goes where its beginning went before, unless that replica has too much to do.

A tree of prompt prefixes remembers, for each block of bytes, which replicas got it. The prompt is cut into blocks of growing
size (the beginning matters most) and each block's key is the hash of everything up to its end, so the tree is a flat
dictionary: key of a prefix → replicas that got it. The dictionary is an LRU, bounded in memory.

A replica's score is the share of the prompt that it has seen, less its load above the mean; and none is chosen for what it has
seen once it has a quarter more than the mean and two requests. The choice is written into the tree at once, so a burst of equal
prompts sees its own choices and spreads.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

from llmgw_router.policies.base import C, Hints, least_loaded

_FIRST_BLOCK = 128
_GROWTH = 1.25
_MAX_BLOCKS = 28
_ENTRY_BYTES = 320
"""What one prefix costs in memory, roughly: its key, its node in the dictionary and a short tuple."""
_MAX_OWNERS = 8
_BALANCE = 0.5
_BOUND = 1.25
_SLACK = 2


def _cuts() -> tuple[int, ...]:
    ends = [_FIRST_BLOCK]
    size = float(_FIRST_BLOCK)
    while len(ends) < _MAX_BLOCKS:
        size *= _GROWTH
        ends.append(ends[-1] + int(size))
    return tuple(ends)


_CUTS = _cuts()
"""Where blocks end: 128, 288, 488, … 265,000 at the last."""


class Prefix:
    name = "prefix"
    needs_session = False
    needs_prompt = True

    def __init__(self, memory_bytes: int) -> None:
        self._capacity = max(64, memory_bytes // _ENTRY_BYTES)
        self._owners: OrderedDict[bytes, tuple[str, ...]] = OrderedDict()
        self._turn = -1

    def __len__(self) -> int:
        """Prefixes remembered."""
        return len(self._owners)

    def choose(self, candidates: Sequence[C], hints: Hints) -> C:
        self._turn += 1
        keys = prefixes(hints.prompt)
        seen = self._seen(keys)
        if len(candidates) == 1:
            chosen = candidates[0]
        elif not seen:
            chosen = least_loaded(candidates, self._turn)
        else:
            chosen = self._best(candidates, seen, len(keys))
        self._remember(keys, chosen.id)
        return chosen

    def _seen(self, keys: list[bytes]) -> dict[str, int]:
        """Replica to the number of leading blocks that it got."""
        seen: dict[str, int] = {}
        for depth, key in enumerate(keys, 1):
            owners = self._owners.get(key)
            if owners is None:
                break
            for owner in owners:
                seen[owner] = depth
        return seen

    def _best(self, candidates: Sequence[C], seen: dict[str, int], blocks: int) -> C:
        count = len(candidates)
        mean = sum(each.load for each in candidates) / count
        most = _BOUND * mean + _SLACK
        scale = _BALANCE / max(1.0, mean)
        best = candidates[self._turn % count]
        highest = -1e18
        for offset in range(count):
            each = candidates[(self._turn + offset) % count]
            value = seen.get(each.id, 0) / blocks - scale * max(0.0, each.load - mean) if each.load < most else -each.load
            if value > highest or (value == highest and each.load < best.load):
                best, highest = each, value
        return best

    def _remember(self, keys: list[bytes], owner: str) -> None:
        table = self._owners
        for key in keys:
            owners = table.get(key)
            if owners is None:
                table[key] = (owner,)
                continue
            if owners[0] != owner:
                table[key] = (owner, *[each for each in owners if each != owner][: _MAX_OWNERS - 1])
            table.move_to_end(key)
        while len(table) > self._capacity:
            table.popitem(last=False)


def prefixes(prompt: bytes) -> list[bytes]:
    """One key for each prefix of ``prompt`` that ends where a block ends; none for a prompt shorter than the first block."""
    state = blake2b(digest_size=12)
    keys = []
    start = 0
    for end in _CUTS:
        if end > len(prompt):
            break
        state.update(prompt[start:end])
        keys.append(state.copy().digest())
        start = end
    return keys
