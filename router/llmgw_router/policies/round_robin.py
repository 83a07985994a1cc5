"""Each replica in turn."""

from __future__ import annotations

from collections.abc import Sequence

from llmgw_router.policies.base import C, Hints


class RoundRobin:
    name = "round_robin"
    needs_session = False
    needs_prompt = False

    def __init__(self) -> None:
        self._turn = -1

    def choose(self, candidates: Sequence[C], hints: Hints) -> C:
        self._turn += 1
        return candidates[self._turn % len(candidates)]
