"""Passive judgement: what a replica's answers say about it. Pure; the caller tells the time.

::

    trusted ──(N failures in a row, or one refused connection)──▶ ejected until T
       ▲                                                            │ T passes, or a probe succeeds
       └───────────────(one good answer: all forgiven)───── on trial ◀┘   (one failure ejects again, twice as long)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar


@dataclass(frozen=True, slots=True)
class Rules:
    failures: int = 3
    first_seconds: float = 2.0
    max_seconds: float = 60.0
    panic_percent: int = 50


class Record:
    """One replica's record."""

    __slots__ = ("earned", "ejected_until", "ejections", "failures", "probe_failures", "suspect")

    def __init__(self) -> None:
        self.failures = 0
        """In a row."""
        self.ejections = 0
        """Since the last good answer, so the next lasts longer."""
        self.ejected_until = 0.0
        """Monotonic seconds; 0 when not ejected."""
        self.earned = False
        """Ejected for bad answers, so that a good probe proves nothing: only time, or a good answer, ends it."""
        self.suspect = False
        """To be probed."""
        self.probe_failures = 0
        """In a row."""

    @property
    def ejected(self) -> bool:
        return self.ejected_until > 0.0

    def success(self) -> bool:
        """A good answer. Returns whether that changed who may be chosen."""
        changed = self.ejected_until > 0.0
        self.failures = 0
        self.ejections = 0
        self.probe_failures = 0
        self.ejected_until = 0.0
        self.suspect = False
        return changed

    def failure(self, now: float, rules: Rules, *, decisive: bool) -> bool:
        """A failed answer; ``decisive`` when nothing listens there. Returns whether that ejected it."""
        self.failures += 1
        self.suspect = True
        if self.ejected_until > 0.0 or not (decisive or self.failures >= rules.failures or self.ejections):
            return False
        self._eject(now, rules)
        self.earned = not decisive
        return True

    def doubt(self, now: float, seconds: float) -> None:
        """Takes it out of use until a probe succeeds, for at most ``seconds``."""
        self.suspect = True
        self.earned = False
        self.ejected_until = now + seconds

    def probe_success(self) -> bool:
        """A good probe. Returns whether that brought it back."""
        self.probe_failures = 0
        if self.ejected_until == 0.0 or self.earned:
            return False
        self.failures = 0
        self.suspect = False
        self.ejected_until = 0.0
        return True

    def probe_failure(self, now: float, rules: Rules, *, limit: int, decisive: bool) -> bool:
        """A missed probe. Returns whether that ejected it; one that is ejected already stays so for longer."""
        self.probe_failures += 1
        if not decisive and self.probe_failures < limit:
            return False
        fresh = self.ejected_until == 0.0
        self._eject(now, rules)
        self.earned = False
        return fresh

    def _eject(self, now: float, rules: Rules) -> None:
        self.ejected_until = now + min(rules.first_seconds * 2.0 ** min(self.ejections, 16), rules.max_seconds)
        self.ejections += 1

    def tick(self, now: float) -> bool:
        """Lets it back on trial when its time is over, unless probes still fail. Returns whether it is back."""
        if 0.0 < self.ejected_until <= now and not self.probe_failures:
            self.ejected_until = 0.0
            return True
        return False


class Judged(Protocol):
    @property
    def health(self) -> Record: ...


J = TypeVar("J", bound=Judged)


def usable(replicas: tuple[J, ...], rules: Rules) -> tuple[J, ...]:
    """Those not ejected; all when too few would be left, since then the judgement is likelier wrong than the replicas."""
    good = tuple(each for each in replicas if not each.health.ejected)
    if len(good) == len(replicas) or (len(good) * 100 >= len(replicas) * rules.panic_percent and good):
        return good
    return replicas
