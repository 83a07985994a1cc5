"""What the coordinator counts, in a registry of its own."""

from __future__ import annotations

from collections import Counter as Tally

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from llmgw_base.metrics import new_registry
from llmgw_coordinator.api.present import Facts, model_views
from llmgw_proto import __version__

_BUCKETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


class Metrics:
    """Gauges that tell of the present are set when they are read, see :meth:`refresh`."""

    def __init__(self) -> None:
        self.registry: CollectorRegistry = new_registry("llmgw-coordinator", __version__)
        self._leader = Gauge("llmgw_coordinator_leader", "1 on the coordinator that leads", registry=self.registry)
        self._planning = Histogram(
            "llmgw_coordinator_planning_seconds", "Time of one planning pass", buckets=_BUCKETS, registry=self.registry
        )
        self._models = Gauge("llmgw_models", "Models by state", ["state"], registry=self.registry)
        self._replicas = Gauge("llmgw_replicas", "Replicas by state", ["state"], registry=self.registry)
        self._nodes = Gauge("llmgw_nodes", "Nodes known, by whether their agent is alive", ["alive"], registry=self.registry)
        self._stale = Gauge(
            "llmgw_coordinator_store_stale_seconds", "For how long etcd could not be followed; 0: it is", registry=self.registry
        )
        self._problems = Gauge("llmgw_coordinator_problems", "Problems that status shows", registry=self.registry)
        self.requests = Counter(
            "llmgw_coordinator_admin_requests", "Requests to the admin API", ["method", "status"], registry=self.registry
        )

    def observe_planning(self, seconds: float) -> None:
        self._planning.observe(seconds)

    def refresh(self, facts: Facts, *, leads: bool, problems: int) -> None:
        """Sets the gauges from what is known now."""
        self._leader.set(leads)
        self._stale.set(facts.stale_for or 0)
        self._problems.set(problems)
        models = model_views(facts)
        _set(self._models, Tally(model.state for model in models))
        _set(self._replicas, Tally(replica.state for model in models for replica in model.replicas))
        alive = len(facts.view.breathing)
        _set(self._nodes, Tally({"true": alive, "false": len(facts.view.nodes) - alive}))


def _set(gauge: Gauge, tally: Tally[str]) -> None:
    gauge.clear()
    for label, count in tally.items():
        gauge.labels(label).set(count)
