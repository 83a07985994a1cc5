"""Random, in proportion to the replicas' weights; weight 0 takes nothing while another replica has some."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from llmgw_router.policies.base import C, Hints


class Weighted:
    name = "weighted"
    needs_session = False
    needs_prompt = False

    def __init__(self, source: random.Random) -> None:
        self._random = source.random

    def choose(self, candidates: Sequence[C], hints: Hints) -> C:
        sums = list(accumulate(each.weight for each in candidates))
        if not sums[-1]:
            return candidates[int(self._random() * len(candidates))]
        return candidates[bisect_right(sums, self._random() * sums[-1])]
