"""What the agent counts of itself. The hardware's figures are in :mod:`llmgw_agent.hardware.metrics`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from llmgw_agent.publisher import Publisher
from llmgw_proto.records import ShardRecord


class AgentMetrics(Collector):
    """Registers itself; reads everything when it is asked."""

    def __init__(self, registry: CollectorRegistry, publisher: Publisher, shards: Callable[[], Sequence[ShardRecord]]) -> None:
        self._publisher, self._shards = publisher, shards
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        shards = self._shards()
        states = GaugeMetricFamily("llmgw_agent_shards", "Shards on this node by state", labels=["state"])
        for state, count in sorted(Counter(str(shard.state) for shard in shards).items()):
            states.add_metric([state], count)
        yield states
        restarts = CounterMetricFamily(
            "llmgw_agent_shard_restarts", "Starts of an engine after its first", labels=["model", "shard"]
        )
        memory = GaugeMetricFamily(
            "llmgw_agent_shard_peak_resident_bytes", "Most host memory that an engine has had", labels=["model", "shard"]
        )
        for shard in shards:
            restarts.add_metric([shard.model, shard.shard], shard.restarts)
            memory.add_metric([shard.model, shard.shard], shard.peak_rss_bytes)
        yield restarts
        yield memory
        yield GaugeMetricFamily(
            "llmgw_agent_store_connected", "1 while the node is registered in etcd", value=int(self._publisher.connected)
        )
        yield GaugeMetricFamily(
            "llmgw_agent_store_pending_writes", "Keys that etcd does not hold yet as wished", value=self._publisher.pending
        )
