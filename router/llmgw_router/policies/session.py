"""A session stays on its replica for as long as that one serves. Without a session: least loaded.

The choice is computed, not remembered (rendezvous hashing), so every router and worker makes the same one.
"""

from __future__ import annotations

from collections.abc import Sequence

from llmgw_router.policies.base import C, Hints, least_loaded
from llmgw_router.policies.consistent_hash import key_of, score


class SessionAffinity:
    name = "session"
    needs_session = True
    needs_prompt = False

    def __init__(self) -> None:
        self._turn = -1

    def choose(self, candidates: Sequence[C], hints: Hints) -> C:
        if not hints.session:
            self._turn += 1
            return least_loaded(candidates, self._turn)
        key = key_of(hints.session)
        return max(candidates, key=lambda each: score(key, each.id))
