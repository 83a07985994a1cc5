"""When a failed engine is started again. Pure: no clock, and the dice are given in.

Failures are counted; they are forgotten once an engine was ready for ``interval`` seconds. Each one doubles the pause before
the next attempt, spread by a random part, so that many shards that failed together do not come back together. At ``attempts``
failures the breaker opens: the shard stays Failed, and after a cool-down one single attempt is allowed; its failure starts
the cool-down again. The count is all there is to keep over a restart of the agent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds, except ``attempts``."""

    attempts: int = 5
    interval: float = 600.0
    first_delay: float = 1.0
    longest_delay: float = 60.0
    cooldown: float = 600.0


@dataclass(frozen=True, slots=True)
class Retry:
    delay: float
    reason: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The breaker is open."""

    cooldown: float
    reason: str


class RestartPolicy:
    """The failures of one wish."""

    def __init__(self, limits: Limits, spread: Callable[[], float], failures: int = 0) -> None:
        """``spread`` returns a random number from 0 to 1."""
        self._limits, self._spread = limits, spread
        self.failures = failures

    def failed(self, cause: str, ready_for: float = 0.0) -> Retry | GiveUp:
        """Counts a failure of an engine that had been ready for ``ready_for`` seconds, and decides."""
        limits = self._limits
        if ready_for >= limits.interval:
            self.failures = 0
        self.failures += 1
        if self.failures >= limits.attempts:
            return GiveUp(
                limits.cooldown,
                f"{cause} It failed {self.failures} times in a row, so the breaker is open; "
                f"one more attempt follows after {limits.cooldown:g} s.",
            )
        delay = min(limits.longest_delay, limits.first_delay * 2.0 ** min(self.failures - 1, 60))
        delay *= 1 + 0.25 * self._spread()
        return Retry(delay, f"{cause} Attempt {self.failures + 1} of {limits.attempts} follows in {delay:.1f} s.")
