"""One replica as the admin API shows it: put together from its shards. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmgw_coordinator.api.shapes import ReplicaView, ShardView
from llmgw_coordinator.state.view import Place, View
from llmgw_proto.records import AssignmentRecord, ShardRecord, ShardRole, ShardState

ASSIGNED = ShardState.ASSIGNED
#: A replica is in the first of these states in which one of its shards is.
_WORST_FIRST = (
    ShardState.REJECTED,
    ShardState.FAILED,
    ShardState.STOPPED,
    ShardState.DRAINING,
    ShardState.SUSPECT,
    ShardState.ASSIGNED,
    ShardState.INSTALLING,
    ShardState.FETCHING,
    ShardState.STARTING,
    ShardState.PROBING,
    ShardState.READY,
)
_RANKS = {state: rank for rank, state in enumerate(_WORST_FIRST)}


@dataclass(frozen=True, slots=True)
class Part:
    """A shard: what is wished of it, and what its agent says about that, as far as there is either."""

    node: str
    wish: AssignmentRecord | None
    truth: ShardRecord | None

    @property
    def known(self) -> AssignmentRecord | ShardRecord:
        known = self.wish if self.wish is not None else self.truth
        assert known is not None, "there is one or the other"
        return known

    @property
    def state(self) -> ShardState:
        return self.truth.state if self.truth is not None else ASSIGNED

    @property
    def reason(self) -> str:
        return self.truth.reason if self.truth is not None else ""


def whole(view: View) -> dict[str, list[Part]]:
    """By replica, its shards by rank: what is assigned, and what is left of replicas that are assigned no longer."""
    found: dict[str, list[Part]] = {}
    for place, stored in view.assignments.items():
        wish = stored.record
        found.setdefault(wish.replica, []).append(Part(place[0], wish, _told(view, place, wish)))
    left: dict[str, list[Part]] = {}
    for place, truth in view.shards.items():
        if truth.record.replica not in found and place not in view.assignments:
            left.setdefault(truth.record.replica, []).append(Part(place[0], None, truth.record))
    return {replica: _newest(parts) for known in (found, left) for replica, parts in known.items()}


def _told(view: View, place: Place, wish: AssignmentRecord) -> ShardRecord | None:
    """What the agent says about this epoch; what it said about an earlier one is history."""
    stored = view.shards.get(place)
    return stored.record if stored is not None and stored.record.epoch == wish.epoch else None


def _newest(parts: list[Part]) -> list[Part]:
    """Those of the newest epoch, one for each rank."""
    if len(parts) == 1:
        return parts
    epoch = max(each.known.epoch for each in parts)
    by_rank = {each.known.rank: each for each in sorted(parts, key=lambda each: each.node) if each.known.epoch == epoch}
    return [by_rank[rank] for rank in sorted(by_rank)]


def replica_view(view: View, parts: Sequence[Part]) -> ReplicaView:
    head = parts[0]
    known = head.known
    endpoint = view.endpoints.get((head.node, known.replica))
    live = endpoint.record if endpoint is not None and endpoint.record.epoch == known.epoch else None
    worst = min(parts, key=lambda each: _RANKS[each.state])
    truth = head.truth
    drained = truth is not None and truth.drained
    return ReplicaView(
        id=known.replica,
        model=known.model,
        node=head.node,
        nodes=[each.node for each in parts],
        epoch=known.epoch,
        state=worst.state,
        reason=_reason(view, parts, worst),
        url=live.url if live is not None else None,
        pid=truth.pid if truth is not None else None,
        port=truth.port if truth is not None else None,
        restarts=truth.restarts if truth is not None else 0,
        started_at=truth.started_at if truth is not None else None,
        next_attempt_at=worst.truth.next_attempt_at if worst.truth is not None else None,
        gpus=[gpu for each in parts for gpu in each.known.gpus],
        draining=any(each.wish is None for each in parts) or (live is not None and live.draining and not drained),
        drained=drained,
        generation=known.generation,
        engine=known.engine,
        engine_version=truth.engine_version if truth is not None else "",
        log_path=truth.log_path if truth is not None else "",
        shards=[_shard(each) for each in parts],
    )


def _shard(part: Part) -> ShardView:
    known, truth = part.known, part.truth
    gang = truth.gang if truth is not None else None
    return ShardView(
        shard=known.shard,
        rank=known.rank,
        role=ShardRole.WORKER if known.rank else ShardRole.HEAD,
        node=part.node,
        state=part.state,
        reason=part.reason,
        pid=truth.pid if truth is not None else None,
        port=truth.port if truth is not None else None,
        phase=gang.phase if gang is not None else None,
        attempt=gang.attempt if gang is not None else None,
        gpus=known.gpus,
        log_path=truth.log_path if truth is not None else "",
    )


def _reason(view: View, parts: Sequence[Part], worst: Part) -> str:
    """Of the worst shard, or else of the first one that gives any; which node is away comes first."""
    telling = worst if worst.reason else next((each for each in parts if each.reason), worst)
    reason = telling.reason
    if reason and telling is not parts[0]:
        reason = f"rank {telling.known.rank} on {telling.node}: {reason}"
    gone = [each.node for each in parts if each.node not in view.breathing]
    if not gone:
        return reason
    away = f"node {gone[0]} is away; this is what it last reported"
    return f"{away}: {reason}" if reason else away
