"""Counters and histograms that cost a fraction of a microsecond, and can be added up over worker processes. Pure.

prometheus_client renders them (:mod:`llmgw_router.ops.web`) but does not keep them: its locks and label look-ups cost more than
a request may.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import msgspec

MAX_SERIES = 1000
OTHER = "other"


class Counter:
    """``values`` by label values; add with ``counter.add(labels)``."""

    __slots__ = ("help", "labels", "name", "values")

    def __init__(self, name: str, help_text: str, labels: Sequence[str]) -> None:
        self.name = name
        self.help = help_text
        self.labels = tuple(labels)
        self.values: dict[tuple[str, ...], float] = {}

    def add(self, labels: tuple[str, ...], amount: float = 1) -> None:
        values = self.values
        if labels in values:
            values[labels] += amount
        elif len(values) < MAX_SERIES:
            values[labels] = amount
        else:
            rest = (OTHER,) * len(labels)
            values[rest] = values.get(rest, 0) + amount


class Series:
    """One histogram of one set of label values."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


class Histogram:
    __slots__ = ("bounds", "help", "labels", "name", "series")

    def __init__(self, name: str, help_text: str, labels: Sequence[str], bounds: Sequence[float]) -> None:
        self.name = name
        self.help = help_text
        self.labels = tuple(labels)
        self.bounds = tuple(bounds)
        self.series: dict[tuple[str, ...], Series] = {}

    def of(self, labels: tuple[str, ...]) -> Series:
        found = self.series.get(labels)
        if found is None:
            if len(self.series) >= MAX_SERIES:
                labels = (OTHER,) * len(labels)
                found = self.series.get(labels)
            if found is None:
                found = self.series[labels] = Series(self.bounds)
        return found


class Family(msgspec.Struct):
    """Figures of one name as they travel between workers."""

    name: str
    help: str
    kind: str
    labels: tuple[str, ...]
    samples: list[tuple[tuple[str, ...], list[float]]]
    """Label values and: one value, or for a histogram the count of each bucket and then the sum."""
    bounds: tuple[float, ...] = ()


def family_of(metric: Counter | Histogram, kind: str = "counter") -> Family:
    if isinstance(metric, Counter):
        samples = [(labels, [value]) for labels, value in metric.values.items()]
        return Family(metric.name, metric.help, kind, metric.labels, samples)
    filled = [(labels, [*map(float, each.counts), each.total]) for labels, each in metric.series.items()]
    return Family(metric.name, metric.help, "histogram", metric.labels, filled, metric.bounds)


def add_up(snapshots: Sequence[Sequence[Family]]) -> list[Family]:
    """One snapshot out of those of all workers: everything is summed, gauges too."""
    families: dict[str, Family] = {}
    sums: dict[str, dict[tuple[str, ...], list[float]]] = {}
    for snapshot in snapshots:
        for family in snapshot:
            families.setdefault(family.name, family)
            into = sums.setdefault(family.name, {})
            for labels, values in family.samples:
                known = into.get(labels)
                into[labels] = [one + other for one, other in zip(known, values, strict=True)] if known else list(values)
    return [
        Family(each.name, each.help, each.kind, each.labels, list(sums[name].items()), each.bounds)
        for name, each in families.items()
    ]
