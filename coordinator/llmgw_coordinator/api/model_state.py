"""A model's state in one word. Pure."""

from __future__ import annotations

from collections.abc import Sequence, Set

from llmgw_coordinator.api.shapes import ModelState, ReplicaView
from llmgw_proto.records import ShardState

_GIVEN_UP = {ShardState.REJECTED, ShardState.FAILED}


def given_up(replica: ReplicaView) -> bool:
    """Whether the agent will not try again by itself."""
    return replica.state in _GIVEN_UP and replica.next_attempt_at is None


def ready_count(replicas: Sequence[ReplicaView], away: Set[str]) -> int:
    """``away``: ids of replicas whose node is away."""
    return sum(
        each.state == ShardState.READY and not each.draining and not each.drained and each.id not in away for each in replicas
    )


def state_of(
    wanted: int,
    replicas: Sequence[ReplicaView],
    *,
    away: Set[str],
    outdated: bool,
    planning_failed: bool,
    waits: bool,
) -> ModelState:
    """
    Args:
        away: ids of replicas whose node is away.
        outdated: some replicas still run an older spec.
        waits: the planner has a reason why it cannot do all that is wished.
    """
    staying = [each for each in replicas if not each.draining]
    ready = ready_count(staying, away)
    if planning_failed:
        return ModelState.FAILED
    if wanted == 0:
        return ModelState.PROGRESSING if replicas else ModelState.SCALED_TO_ZERO
    if ready >= wanted:
        return ModelState.PROGRESSING if outdated or len(staying) > wanted else ModelState.READY
    if any(each.drained for each in staying):
        # The operator's own doing: nothing will come of itself.
        return ModelState.DEGRADED
    if staying and all(given_up(each) for each in staying):
        return ModelState.FAILED
    if not staying:
        return ModelState.PENDING if waits else ModelState.PROGRESSING
    wrong = waits or any(given_up(each) or each.state == ShardState.SUSPECT or each.id in away for each in staying)
    if wrong and ready:
        return ModelState.DEGRADED
    return ModelState.PENDING if waits else ModelState.PROGRESSING
