"""The replica with the fewest requests, running and booked; equals take turns."""

from __future__ import annotations

from collections.abc import Sequence

from llmgw_router.policies.base import C, Hints, least_loaded


class LeastLoaded:
    name = "least_loaded"
    needs_session = False
    needs_prompt = False

    def __init__(self) -> None:
        self._turn = -1

    def choose(self, candidates: Sequence[C], hints: Hints) -> C:
        self._turn += 1
        return least_loaded(candidates, self._turn)
