"""What a policy sees and what it must offer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar


class Candidate(Protocol):
    """A replica that may take the request now: healthy, not draining, below its limit."""

    @property
    def id(self) -> str:
        """Stable over restarts of the router."""
        ...

    @property
    def load(self) -> int:
        """Requests that it has, counted from the moment it was chosen for them."""
        ...

    @property
    def weight(self) -> int:
        """Its share, where shares matter; 100 unless set, 0 for none."""
        ...


@dataclass(slots=True)
class Hints:
    """What is known about the request."""

    session: bytes = b""
    """The session header, else the ``user`` field, else empty. Only filled in for a policy that ``needs_session``."""
    prompt: bytes = b""
    """The body from where its prompt begins, at most 256 KiB of it. Only filled in for a policy that ``needs_prompt``."""


NO_HINTS = Hints()
"""For policies that need none."""

C = TypeVar("C", bound=Candidate)


class Policy(Protocol):
    name: str
    needs_session: bool
    needs_prompt: bool

    def choose(self, candidates: Sequence[C], hints: Hints) -> C:
        """Chooses one of ``candidates``, of which there is at least one. The caller adds to its load at once."""
        ...


def least_loaded(candidates: Sequence[C], start: int) -> C:
    """The one with the least load; among equals the first from ``start`` on, so that equals take turns."""
    count = len(candidates)
    best = candidates[start % count]
    lowest = best.load
    if lowest:
        for offset in range(1, count):
            other = candidates[(start + offset) % count]
            load = other.load
            if load < lowest:
                best, lowest = other, load
                if not load:
                    break
    return best
