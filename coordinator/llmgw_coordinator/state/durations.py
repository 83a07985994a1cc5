"""For how long things have been so, by this coordinator's own clock."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Generic, TypeVar

K = TypeVar("K")


class Durations(Generic[K]):
    """Remembers when each thing was first seen to be so. Pure but for its memory; the time is handed in (monotonic).

    Time in which the store could not be read does not count: nobody could tell whether it still was so.
    """

    def __init__(self) -> None:
        self._since: dict[K, float] = {}
        self._resyncs = 0

    def update(self, so: Iterable[K], resyncs: int, now: float) -> dict[K, float]:
        """Seconds by thing, for those that are so now.

        Args:
            resyncs: how often the view came back after having been out of date; a higher number starts all anew.
        """
        if resyncs != self._resyncs:
            self._resyncs = resyncs
            self._since.clear()
        self._since = {each: self._since.get(each, now) for each in so}
        return {each: now - since for each, since in self._since.items()}


class Absence:
    """For how long nodes have been away."""

    def __init__(self) -> None:
        self._durations: Durations[str] = Durations()
        self.witnessed: set[str] = set()
        """Nodes that were alive at some update."""

    def update(self, known: Iterable[str], alive: Set[str], resyncs: int, now: float) -> dict[str, float]:
        """Seconds of absence by node, for those that are away; see :meth:`Durations.update`."""
        self.witnessed |= alive
        return self._durations.update([name for name in known if name not in alive], resyncs, now)
