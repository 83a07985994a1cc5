"""What the cluster gets to see of a shard. Pure."""

from __future__ import annotations

from llmgw_agent.engines.base import Facts
from llmgw_agent.shard.serve import Answering
from llmgw_agent.shard.state import SavedAttempt, SavedShard
from llmgw_proto.records import AssignmentRecord, EndpointRecord, ShardRecord, ShardRole, ShardState


def shard_record(
    saved: SavedShard,
    state: ShardState,
    reason: str,
    *,
    now: float,
    log_path: str,
    next_attempt_at: float | None = None,
    peak_rss_bytes: int = 0,
) -> ShardRecord:
    wish, attempt, process = saved.assignment, saved.attempt, saved.process
    return ShardRecord(
        shard=wish.shard,
        replica=wish.replica,
        model=wish.model,
        node=saved.node,
        epoch=wish.epoch,
        state=state,
        reason=reason,
        engine=wish.engine,
        engine_version=attempt.engine_version if attempt is not None else "",
        pid=process.pid if process is not None else None,
        port=_port(saved),
        restarts=saved.restarts,
        generation=wish.generation,
        gpus=wish.gpus,
        memory_bytes=wish.memory_bytes or (attempt.memory_bytes if attempt is not None else 0),
        peak_rss_bytes=peak_rss_bytes,
        started_at=process.started_at if process is not None else None,
        updated_at=now,
        next_attempt_at=next_attempt_at,
        log_path=log_path,
        timings=saved.timings,
        drained=saved.drained,
        peak_gpu_bytes=saved.peak_gpu_bytes,
        tokens_per_second=saved.tokens_per_second,
        rank=wish.rank,
        gang=saved.gang,
    )


def _port(saved: SavedShard) -> int | None:
    if saved.attempt is None or saved.process is None:
        return None
    if saved.assignment.role is ShardRole.WORKER:
        # It serves no requests; where it listens to the head, if it does, is what it said.
        return saved.gang.port or None if saved.gang is not None else None
    return saved.attempt.port


def endpoint_record(node: str, address: str, wish: AssignmentRecord, attempt: SavedAttempt, found: Answering) -> EndpointRecord:
    facts: Facts = found.facts
    host = f"[{address}]" if ":" in address else address
    return EndpointRecord(
        replica=wish.replica,
        node=node,
        model=wish.model,
        epoch=wish.epoch,
        url=f"http://{host}:{attempt.port}",
        served_name=facts.served_name,
        capabilities=found.capabilities,
        max_concurrency=facts.max_concurrency,
        policy=wish.policy,
        max_model_len=facts.max_model_len,
        kv_events=attempt.kv_events,
    )
