"""For how long nodes have been away, by this coordinator's own clock."""

from __future__ import annotations

from collections.abc import Iterable, Set


class Absence:
    """Remembers when each node was first seen to be away. Pure but for its memory; the time is handed in (monotonic).

    Time in which the store could not be read does not count: nobody could tell whether the node was alive then.
    """

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._resyncs = 0
        self.witnessed: set[str] = set()
        """Nodes that were alive at some update."""

    def update(self, known: Iterable[str], alive: Set[str], resyncs: int, now: float) -> dict[str, float]:
        """Seconds of absence by node, for those that are away.

        Args:
            resyncs: how often the view came back after having been out of date; a higher number starts all absences anew.
        """
        if resyncs != self._resyncs:
            self._resyncs = resyncs
            self._since.clear()
        self.witnessed |= alive
        self._since = {name: self._since.get(name, now) for name in known if name not in alive}
        return {name: now - since for name, since in self._since.items()}
