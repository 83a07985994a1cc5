"""What the store counts for Prometheus: where bytes came from, and what other agents were given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector


@dataclass
class Traffic:
    """Bytes since the start. ``fetched`` by kind of place: peer, mirror, source."""

    fetched: dict[str, int] = field(default_factory=lambda: {"peer": 0, "mirror": 0, "source": 0})
    given: int = 0


class WeightsMetrics(Collector):
    """Registers itself; reads when it is asked."""

    def __init__(self, registry: CollectorRegistry, traffic: Traffic) -> None:
        self._traffic = traffic
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        fetched = CounterMetricFamily(
            "llmgw_agent_weights_fetched_bytes", "Bytes of weights that came over the network, by where from", labels=["place"]
        )
        for place, count in self._traffic.fetched.items():
            fetched.add_metric([place], count)
        yield fetched
        yield CounterMetricFamily(
            "llmgw_agent_weights_given_bytes", "Bytes of weights that other agents were given", value=self._traffic.given
        )
