"""From what is known to what the admin API shows. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from llmgw_coordinator.api.model_state import ready_count, state_of
from llmgw_coordinator.api.replica_view import replica_view, whole
from llmgw_coordinator.api.shapes import ModelState, ModelSummary, ModelView, NodeView, ReplicaView
from llmgw_coordinator.planner import Plan
from llmgw_coordinator.state.view import View
from llmgw_proto.records import ModelSpec


@dataclass(frozen=True, slots=True)
class Facts:
    """All that answers are made from."""

    view: View
    plan: Plan
    gone_for: Mapping[str, float] = field(default_factory=dict)
    stale_for: float | None = None


def replica_views(facts: Facts) -> dict[str, ReplicaView]:
    """By id: what is assigned, and what is left of replicas that are assigned no longer."""
    return {replica: replica_view(facts.view, parts) for replica, parts in whole(facts.view).items()}


def model_views(facts: Facts, *, fresh: Mapping[str, ModelSpec] | None = None) -> list[ModelView]:
    """All models, sorted by name. ``fresh``: specs just written, which the mirror may not show yet."""
    replicas: dict[str, list[ReplicaView]] = defaultdict(list)
    for each in replica_views(facts).values():
        replicas[each.model].append(each)
    specs = {name: stored.record for name, stored in facts.view.models.items()} | dict(fresh or {})
    names = {*specs, *replicas, *facts.view.unread_models}
    return [_model(facts, name, specs.get(name), replicas.get(name, [])) for name in sorted(names)]


def model_view(facts: Facts, name: str, *, fresh: ModelSpec | None = None) -> ModelView | None:
    found = model_views(facts, fresh={name: fresh} if fresh is not None else None)
    return next((each for each in found if each.name == name), None)


def summary(model: ModelView) -> ModelSummary:
    return ModelSummary(name=model.name, wanted=model.wanted, ready=model.ready, state=model.state, reason=model.reason)


def node_views(facts: Facts) -> list[NodeView]:
    view = facts.view
    committed: dict[str, dict[str, int]] = defaultdict(dict)
    replicas: dict[str, set[str]] = defaultdict(set)
    for (node, shard), truth in view.shards.items():
        committed[node][shard] = truth.record.memory_bytes
        replicas[node].add(truth.record.replica)
    for (node, shard), wish in view.assignments.items():
        committed[node][shard] = max(committed[node].get(shard, 0), wish.record.memory_bytes)
        replicas[node].add(wish.record.replica)
    return [
        NodeView(
            name=name,
            alive=name in view.breathing,
            inventory=view.inventories[name].record if name in view.inventories else None,
            status=view.statuses[name].record if name in view.statuses else None,
            grpc_address=view.alive[name].record.grpc_address if name in view.alive else None,
            replicas=sorted(replicas[name]),
            memory_committed_bytes=sum(committed[name].values()),
        )
        for name in view.nodes
    ]


def _model(facts: Facts, name: str, spec: ModelSpec | None, replicas: list[ReplicaView]) -> ModelView:
    wanted = spec.replicas.min if spec is not None else 0
    unread = facts.view.unread_models.get(name)
    failure = facts.plan.failures.get(name)
    away = {each.id for each in replicas if not facts.view.breathing.issuperset(each.nodes)}
    state = state_of(
        wanted,
        replicas,
        away=away,
        outdated=bool(facts.plan.outdated.get(name)),
        planning_failed=failure is not None or (unread is not None and spec is None),
        waits=name in facts.plan.reasons,
    )
    if spec is None and unread is None:
        state = ModelState.REMOVING
    return ModelView(
        name=name,
        wanted=wanted,
        ready=ready_count(replicas, away),
        state=state,
        reason=_reason(name, facts, unread, failure, replicas),
        spec=spec,
        replicas=sorted(replicas, key=lambda each: each.id),
    )


def _reason(name: str, facts: Facts, unread: str | None, failure: Exception | None, replicas: list[ReplicaView]) -> str:
    if failure is not None:
        return f"it cannot be planned ({type(failure).__name__}: {failure}); correct the model and apply it again"
    if unread is not None:
        return f"its spec cannot be read ({unread}); apply it again"
    planned = facts.plan.reasons.get(name)
    if planned:
        return planned
    return next((f"replica {each.id}: {each.reason}" for each in replicas if each.reason), "")
