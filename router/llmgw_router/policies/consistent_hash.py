"""Consistent hashing with bounded load: a session (or else a prompt's beginning) goes to the same replica as long as that one
has not much more than its share, and then to the next one on its own list, so that replicas that come and go move few keys.

Rendezvous hashing: each replica gets a score from hash(key, replica); the highest score below the load bound wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from llmgw_router.policies.base import C, Hints, least_loaded

_KEY_BYTES = 512


def score(key: bytes, replica: str) -> int:
    return int.from_bytes(blake2b(replica.encode(), digest_size=8, key=key[:64]).digest(), "big")


def key_of(text: bytes) -> bytes:
    """At most 32 bytes that stand for ``text``."""
    return text if len(text) <= 32 else blake2b(text, digest_size=16).digest()


class ConsistentHash:
    name = "consistent_hash"
    needs_session = True
    needs_prompt = True

    def __init__(self, bound: float = 1.25) -> None:
        self._bound = bound
        self._turn = -1

    def choose(self, candidates: Sequence[C], hints: Hints) -> C:
        text = hints.session or hints.prompt[:_KEY_BYTES]
        if not text:
            self._turn += 1
            return least_loaded(candidates, self._turn)
        # Each may have its share of all requests, this one counted, times the bound, rounded up.
        total = 1 + sum(each.load for each in candidates)
        most = -(-total * self._bound // len(candidates))
        key = key_of(text)
        within = [each for each in candidates if each.load + 1 <= most]
        return max(within or candidates, key=lambda each: score(key, each.id))
