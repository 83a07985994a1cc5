"""All that is known of one shard now, for whoever asks."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from llmgw_agent.engines.client import EngineSilentError
from llmgw_agent.engines.pulse import Pulse, read_pulse
from llmgw_agent.process.identity import PROC, Identity, read_stat
from llmgw_agent.process.scan import find_family
from llmgw_agent.shard.connections import open_connections
from llmgw_agent.shard.context import Context
from llmgw_agent.shard.machine import Move
from llmgw_agent.shard.runner import Runner
from llmgw_proto import shards_pb2
from llmgw_proto.records import ShardState

_ANSWERING = frozenset({ShardState.READY, ShardState.SUSPECT, ShardState.DRAINING})
_PAGE = os.sysconf("SC_PAGE_SIZE")


async def describe(context: Context, runner: Runner) -> shards_pb2.ShardDetails:
    saved, ledger = runner.ledger.saved, runner.ledger
    wish, attempt, process, pulse = saved.assignment, saved.attempt, saved.process, await _pulse(runner)
    port = attempt.port if attempt is not None and process is not None else None
    details = shards_pb2.ShardDetails(
        shard=wish.shard,
        replica=wish.replica,
        model=wish.model,
        engine=wish.engine,
        epoch=wish.epoch,
        state=runner.state,
        reason=runner.history[-1].reason,
        drained=saved.drained,
        history=_moves(context, runner.history),
        started_at=process.started_at if process is not None else 0.0,
        requests=pulse.requests if pulse is not None else None,
        figures=dict(pulse.work) if pulse is not None else {},
        restarts=saved.restarts,
        failures=saved.failures,
        next_attempt_at=ledger.next_attempt_at or 0.0,
        measured=measured(runner),
    )
    if attempt is not None:
        details.engine_version, details.attempt, details.host = attempt.engine_version, attempt.id, attempt.host
        details.argv.extend(attempt.argv)
        details.environment.extend(attempt.environment)
        details.kv_events = attempt.kv_events
    if port is not None:
        details.ports["http"] = port
        details.connections = await asyncio.to_thread(open_connections, port)
    leader = runner.engine.identity if runner.engine is not None else None
    if leader is not None:
        details.processes.extend(await asyncio.to_thread(_processes, context, leader, wish.shard))
    details.logs.extend(await asyncio.to_thread(_logs, context.log_folder(wish.shard)))
    return details


async def _pulse(runner: Runner) -> Pulse | None:
    """What the engine says now: whoever drains it must not be told what was true some seconds ago."""
    client = runner.client
    if client is None or runner.state not in _ANSWERING:
        return runner.measures.pulse
    try:
        return await read_pulse(client)
    except EngineSilentError:
        return runner.measures.pulse


def measured(runner: Runner) -> shards_pb2.Measured:
    saved = runner.ledger.saved
    times = saved.timings
    return shards_pb2.Measured(
        install=times.install,
        fetch=times.fetch,
        start_to_listen=times.start_to_listen,
        listen_to_ready=times.listen_to_ready,
        peak_rss_bytes=runner.ledger.peak_rss_bytes,
        peak_gpu_bytes=saved.peak_gpu_bytes,
        tokens_per_second=saved.tokens_per_second,
    )


def resident(pid: int, proc: Path = PROC) -> int:
    """Bytes of memory that the process has resident; 0 if it is gone."""
    try:
        return int((proc / str(pid) / "statm").read_bytes().split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return 0


def _moves(context: Context, history: tuple[Move, ...]) -> list[shards_pb2.Move]:
    ahead = context.clock.wall() - context.clock.monotonic()
    return [shards_pb2.Move(at=each.at + ahead, state=each.state, reason=each.reason) for each in history]


def _processes(context: Context, leader: Identity, shard: str) -> list[shards_pb2.ProcessFacts]:
    found = []
    for each in sorted(
        find_family(leader, context.owner, shard, logs=context.log_folder(shard)), key=lambda one: (one.start_ticks, one.pid)
    ):
        stat = read_stat(each.pid)
        try:
            name = (PROC / str(each.pid) / "comm").read_text(errors="replace").strip()
        except OSError:
            continue
        if stat is not None:
            facts = shards_pb2.ProcessFacts(pid=each.pid, parent=stat.parent, name=name, rss_bytes=resident(each.pid))
            found.append(facts)
    return found


def _logs(folder: Path) -> list[shards_pb2.LogFile]:
    found = []
    try:
        paths = sorted(folder.glob("*.log*"))
    except OSError:
        return []
    for path in paths:
        try:
            status = path.stat()
        except OSError:
            continue
        found.append(shards_pb2.LogFile(name=path.name, bytes=status.st_size, modified_at=status.st_mtime))
    return found
