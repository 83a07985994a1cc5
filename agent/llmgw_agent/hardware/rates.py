"""Rates of RDMA ports from their counters. Pure, but for what it remembers of the last reading."""

from __future__ import annotations

from collections.abc import Iterable

from llmgw_agent.hardware.raw import PortSample


class RateMeter:
    """Per-second rates of every counter, by port (``mlx5_0:1``); one that was cleared has no rate until the next reading."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, dict[str, int]]] = {}
        self._rates: dict[str, dict[str, float]] = {}

    @property
    def rates(self) -> dict[str, dict[str, float]]:
        """Port → counter → per second; data in bytes."""
        return self._rates

    def update(self, now: float, ports: Iterable[PortSample]) -> None:
        """Takes a reading in which the counters are fresh; ``now`` in seconds of a monotonic clock."""
        rates: dict[str, dict[str, float]] = {}
        for port in ports:
            before = self._last.get(port.name)
            self._last[port.name] = now, port.counters
            if before is None or now <= before[0]:
                continue
            rates[port.name] = {
                name: (value - before[1][name]) / (now - before[0])
                for name, value in port.counters.items()
                if name in before[1] and value >= before[1][name]
            }
        self._rates = rates
