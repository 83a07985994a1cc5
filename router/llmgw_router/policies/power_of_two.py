"""The less loaded of two replicas drawn at random: nearly as even as looking at all, at a cost that does not grow with them."""

from __future__ import annotations

import random
from collections.abc import Sequence

from llmgw_router.policies.base import C, Hints


class PowerOfTwo:
    name = "power_of_two"
    needs_session = False
    needs_prompt = False

    def __init__(self, source: random.Random) -> None:
        self._random = source.random

    def choose(self, candidates: Sequence[C], hints: Hints) -> C:
        count = len(candidates)
        if count == 1:
            return candidates[0]
        first = int(self._random() * count)
        second = int(self._random() * (count - 1))
        if second >= first:
            second += 1
        one, other = candidates[first], candidates[second]
        return one if one.load <= other.load else other
