"""Figures that are read when asked for, not counted as requests go by."""

from __future__ import annotations

from llmgw_router.account.figures import Family
from llmgw_router.client.front import Front
from llmgw_router.ops.health import Source
from llmgw_router.table.directory import Directory


def gauges(directory: Directory, front: Front, source: Source) -> list[Family]:
    states = list(directory.states())
    replicas = directory.table.replicas
    stale = 0.0 if source.stale_since is None else front.now() - source.stale_since
    return [
        _of_models(
            "running", "Requests at engines now", "gauge", [(each.name, each.running - len(each.queue)) for each in states]
        ),
        _of_models("queued", "Requests that wait for a replica", "gauge", [(each.name, len(each.queue)) for each in states]),
        _of_models("requests", "Requests settled", "counter", [(each.name, each.requests) for each in states]),
        _of_models("errors", "Requests answered 5xx", "counter", [(each.name, each.errors) for each in states]),
        _gauge("replica_load", "Requests at this replica now", ["replica"], [((each.id,), each.load) for each in replicas]),
        _gauge(
            "replica_ejected",
            "1 while the replica is out of use",
            ["replica"],
            [((each.id,), each.health.ejected) for each in replicas],
        ),
        _gauge("connections", "Clients connected", [], [((), len(front.open))]),
        _gauge("table_stale_seconds", "Age of what is known when the store is away, summed over workers", [], [((), stale)]),
    ]


def _of_models(name: str, help_text: str, kind: str, samples: list[tuple[str, int]]) -> Family:
    return Family(
        f"llmgw_router_model_{name}", help_text, kind, ("model",), [((model,), [float(value)]) for model, value in samples]
    )


def _gauge(name: str, help_text: str, labels: list[str], samples: list[tuple[tuple[str, ...], float]]) -> Family:
    return Family(
        f"llmgw_router_{name}", help_text, "gauge", tuple(labels), [(values, [float(value)]) for values, value in samples]
    )
