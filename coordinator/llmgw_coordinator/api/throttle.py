"""Turning away addresses that try tokens. Pure but for its memory; the time is handed in (monotonic)."""

from __future__ import annotations

from collections import OrderedDict

#: Addresses remembered; beyond that the one that failed longest ago is forgotten.
REMEMBERED = 10_000


class Throttle:
    """A bucket of failures per address: ``per_minute`` at once, refilled at that rate."""

    def __init__(self, per_minute: int, remembered: int = REMEMBERED) -> None:
        self._per_minute = per_minute
        self._remembered = remembered
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, address: str, now: float) -> float:
        """Seconds until the address may try again; 0 if it may now."""
        left = self._left(address, now)
        return 0.0 if left >= 1 else (1 - left) * 60 / self._per_minute

    def failed(self, address: str, now: float) -> None:
        self._buckets[address] = (max(0.0, self._left(address, now) - 1), now)
        self._buckets.move_to_end(address)
        while len(self._buckets) > self._remembered:
            self._buckets.popitem(last=False)

    def _left(self, address: str, now: float) -> float:
        left, since = self._buckets.get(address, (float(self._per_minute), now))
        return min(float(self._per_minute), left + (now - since) * self._per_minute / 60)
