"""``/admin/v1/replicas/{id}/logs``: relayed from the agent's gRPC service, chunk by chunk."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
from aiohttp import web
from grpc import aio

from llmgw_base.etcd.timers import done_within, reap
from llmgw_coordinator.api.agents import Agents, unreachable
from llmgw_coordinator.api.context import Context
from llmgw_coordinator.api.problems import ApiError, not_found
from llmgw_coordinator.api.relay import coming
from llmgw_coordinator.api.replica_view import whole
from llmgw_coordinator.api.routes import Query, Route
from llmgw_proto.agent_pb2 import LogsRequest

#: Seconds in which a refusal can still become an error answer; after that the answer has begun.
FIRST_CHUNK_WAIT = 1.0
_MOST_LINES = 2**32 - 1

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Target:
    node: str
    shard: str


class Logs:
    def __init__(self, context: Context, agents: Agents) -> None:
        self._context, self._agents = context, agents

    def routes(self) -> list[Route]:
        return [
            Route(
                "GET",
                "/admin/v1/replicas/{replica}/logs",
                "replicaLogs",
                "The log of a replica's engine, oldest line first",
                self._logs,
                {200: None},
                query=(
                    Query(
                        "tail",
                        {"type": "integer", "minimum": 0, "default": 100},
                        "lines from the end to begin with; 0: from the start of the current file; with since or grep: of the "
                        "lines that are left, and 0: all of them",
                    ),
                    Query("rank", {"type": "integer", "minimum": 0, "default": 0}, "of the shard, for a replica over nodes"),
                    Query("follow", {"type": "integer", "enum": [0, 1], "default": 0}, "1: go on with what is appended later"),
                    Query("since", {"type": "number", "minimum": 0}, "only what was written since then, Unix time in seconds"),
                    Query("grep", {"type": "string", "maxLength": 500}, "only lines that match this regular expression (RE2)"),
                    Query(
                        "file",
                        {"type": "string", "enum": ["engine", "first-failure", "suspect"], "default": "engine"},
                        "the engine's log, or what was kept of the first failure or of the time when it became a suspect",
                    ),
                ),
                errors=(404, 422, 502),
                content_type="text/plain",
            )
        ]

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        tail = _number(request, "tail", 100, _MOST_LINES)
        follow = bool(_number(request, "follow", 0, 1))
        since, query = _time(request, "since"), request.query
        target = self._target(request.match_info["replica"], _number(request, "rank", 0, _MOST_LINES))
        async with self._agents.line(target.node) as line:
            wanted = LogsRequest(
                shard=target.shard,
                tail=tail,
                follow=follow,
                since=since,
                grep=query.get("grep", ""),
                file=query.get("file", ""),
            )
            call = line.stub.Logs(wanted, metadata=line.metadata)
            # Leaving the line ends the call, also when the client has left and this task is being cancelled.
            return await _relay(request, call, target, self._context, line.gone)

    def _target(self, replica: str, rank: int) -> Target:
        parts = whole(self._context.facts().view).get(replica)
        if parts is None:
            raise not_found("replica", replica, see="replica list")
        for each in parts:
            if each.known.rank == rank:
                return Target(each.node, each.known.shard)
        ranks = ", ".join(str(each.known.rank) for each in parts)
        raise ApiError(
            404, "shard_not_found", f"replica {replica} has no shard of rank {rank}, only {ranks}", "ask for one that it has"
        )


async def _relay(
    request: web.Request, call: Any, target: Target, context: Context, gone: Callable[[], ApiError | None]
) -> web.StreamResponse:
    """``call`` is the stream of LogsChunk."""
    chunks = call.__aiter__()
    following = asyncio.ensure_future(anext(chunks, None))
    response = web.StreamResponse(headers={"Content-Type": "text/plain; charset=utf-8", "Cache-Control": "no-store"})
    begun = False
    try:
        await done_within(context.clock, following, FIRST_CHUNK_WAIT)
        if following.done() and (error := following.exception()) is not None:
            raise _answer(error, target)
        response.enable_chunked_encoding()
        await response.prepare(request)
        begun = True
        while (chunk := await coming(context.clock, following, gone)) is not None:
            await response.write(chunk.data)
            following = asyncio.ensure_future(anext(chunks, None))
    except (aio.AioRpcError, ApiError) as error:
        if not begun:
            raise
        # The answer has begun: only a connection that breaks tells the client that the log is not complete.
        cause = error.details() if isinstance(error, aio.AioRpcError) else error.message
        logger.warning("the log broke off", extra={"fields": {"node": target.node, "shard": target.shard, "cause": cause}})
        if request.transport is not None:
            request.transport.abort()
        return response
    finally:
        await reap(following)
    await response.write_eof()
    return response


def _number(request: web.Request, name: str, default: int, most: int) -> int:
    text = request.query.get(name, str(default))
    if not text.isascii() or not text.isdigit() or len(text) > 10 or int(text) > most:
        raise ApiError(422, "invalid", f"{name}: {text[:40]!r} is not a number from 0 to {most}", f"correct {name}")
    return int(text)


def _time(request: web.Request, name: str) -> float:
    """Unix time in seconds; 0 if it is not asked for."""
    text = request.query.get(name, "0")
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ApiError(422, "invalid", f"{name}: {text[:40]!r} is not a time in seconds since 1970", f"correct {name}")
    return value


def _answer(error: BaseException, target: Target) -> BaseException:
    if not isinstance(error, aio.AioRpcError):
        return error
    if error.code() is grpc.StatusCode.NOT_FOUND:
        return ApiError(
            404,
            "log_not_found",
            f"node {target.node}: {error.details()}",
            "wait until the engine has started; what is kept of a failure is there only after one",
        )
    if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
        return ApiError(422, "invalid", str(error.details()), "correct the request")
    return unreachable(target.node, f"{error.code().name.lower()}: {error.details()}")
