"""Busy or wedged? Pure: looks at an engine go in, a verdict comes out.

An engine that is healthy by its own word and works on requests, but whose work does not get on, is *stalled*. A slow one
whose work gets on never is. What an engine without metrics does while requests run cannot be told, so it is *asked* for a
token once it was idle for a while; so is one that takes itself for idle although somebody is connected, and a stalled one
whose requests were given up, since quiet proves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from llmgw_agent.engines.pulse import Pulse


class Verdict(Enum):
    FINE = auto()
    ASK = auto()
    """Nobody would be disturbed by one token, and its coming would tell: ask, and say :meth:`Judge.asked`."""
    STALLED = auto()


@dataclass(frozen=True, slots=True)
class Look:
    """``pulse``: None if the engine has no known metrics; ``silent``: they did not come; ``connections``: open to its port."""

    pulse: Pulse | None
    silent: bool = False
    connections: int = 0


@dataclass(slots=True)
class Judge:
    """``stall``: seconds of work without getting on that make it stalled; ``idle``: seconds of idleness before it is asked."""

    stall: float
    idle: float
    still: float = 0.0
    """Seconds for which nothing got on, as far as it was looked at."""
    requests: int = 0
    """Running and waiting when they were last told."""
    stalled: bool = False
    _quiet: float = 0.0
    _work: tuple[tuple[str, float], ...] | None = None
    _seen_at: float | None = None

    @property
    def longest_gap(self) -> float:
        """Time between two looks counts up to this: after a pause of the agent itself one look must not condemn."""
        return self.stall / 4

    def look(self, now: float, look: Look) -> Verdict:
        gone = 0.0 if self._seen_at is None else min(now - self._seen_at, self.longest_gap)
        self._seen_at = now
        if look.pulse is not None:
            self._hear(gone, look.pulse, look.connections)
        elif look.silent and self._work is not None:
            # It used to tell, so even an idle engine is not well when it does not.
            self.still += gone
        else:
            return self._untold(gone, look.connections)
        if self.still >= self.stall:
            self.stalled = True
        if self.stalled:
            return Verdict.ASK if look.pulse is not None and self.requests == 0 else Verdict.STALLED
        return Verdict.ASK if self._quiet >= self.idle else Verdict.FINE

    def asked(self, *, answered: bool) -> Verdict:
        """The engine was asked for a token."""
        if answered:
            self._got_on()
            return Verdict.FINE
        self.stalled = True
        return Verdict.STALLED

    def _hear(self, gone: float, pulse: Pulse, connections: int) -> None:
        had, self.requests = self.requests, pulse.requests
        before, self._work = self._work, pulse.work
        if before is None or pulse.work != before:
            self._got_on()
        elif pulse.requests > 0:
            # A request may have come just now: only time between two looks that saw one counts.
            self.still += gone if had > 0 else 0.0
            self._quiet = 0.0
        else:
            # Nothing has to get on. A stalled engine stays that until something did.
            self.still = 0.0
            self._quiet = self._quiet + gone if connections > 0 else 0.0

    def _untold(self, gone: float, connections: int) -> Verdict:
        if self.stalled:
            return Verdict.ASK
        self.still = 0.0
        self._quiet = self._quiet + gone if connections == 0 else 0.0
        return Verdict.ASK if self._quiet >= self.idle else Verdict.FINE

    def _got_on(self) -> None:
        self.still, self._quiet, self.stalled = 0.0, 0.0, False
