"""``/admin/v1/replicas/{id}/logs``: relayed from the agent's gRPC service, chunk by chunk."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc
from aiohttp import web
from grpc import aio  # type: ignore[attr-defined]  # grpc's own annotations leave out its asyncio half

from llmgw_base.etcd.timers import done_within, reap
from llmgw_base.secrets import agent_token
from llmgw_coordinator.api.context import Context
from llmgw_coordinator.api.problems import ApiError, not_found
from llmgw_coordinator.api.routes import Query, Route
from llmgw_proto.agent_pb2 import LogsRequest
from llmgw_proto.agent_pb2_grpc import AgentStub

#: Seconds until an agent that does not accept the connection counts as unreachable.
CONNECT_LIMIT = 3.0
#: Seconds in which a refusal can still become an error answer; after that the answer has begun.
FIRST_CHUNK_WAIT = 1.0
_MOST_LINES = 2**32 - 1
_OPTIONS = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Target:
    node: str
    shard: str
    address: str
    token: str


class Logs:
    def __init__(self, context: Context, credentials: grpc.ChannelCredentials | None) -> None:
        """
        Args:
            credentials: for calling agents over mutual TLS; None: plaintext.
        """
        self._context = context
        self._credentials = credentials

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
                        "lines from the end to begin with; 0: from the start of the current file",
                    ),
                    Query("follow", {"type": "integer", "enum": [0, 1], "default": 0}, "1: go on with what is appended later"),
                ),
                errors=(404, 422, 502),
                content_type="text/plain",
            )
        ]

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        tail = _number(request, "tail", 100, _MOST_LINES)
        follow = bool(_number(request, "follow", 0, 1))
        target = self._target(request.match_info["replica"])
        async with self._channel(target) as channel:
            stub: Any = AgentStub(channel)  # type: ignore[no-untyped-call]  # generated
            call = stub.Logs(
                LogsRequest(shard=target.shard, tail=tail, follow=follow),
                metadata=(("authorization", f"Bearer {target.token}"),),
            )
            # Closing the channel ends the call, also when the client has left and this task is being cancelled.
            return await _relay(request, call, target, self._context)

    def _target(self, replica: str) -> Target:
        view = self._context.facts().view
        wished = {(node, shard): stored.record.replica for (node, shard), stored in view.assignments.items()}
        left = {(node, shard): stored.record.replica for (node, shard), stored in view.shards.items()}
        place = next((place for known in (wished, left) for place, name in known.items() if name == replica), None)
        if place is None:
            raise not_found("replica", replica, see="replica list")
        node, shard = place
        alive = view.alive.get(node)
        if alive is None or view.cluster is None:
            raise _unreachable(node, "the agent is not alive")
        return Target(node, shard, alive.record.grpc_address, agent_token(view.cluster.engine_secret, node))

    @contextlib.asynccontextmanager
    async def _channel(self, target: Target) -> AsyncIterator[Any]:
        if self._credentials is None:
            channel = aio.insecure_channel(target.address, _OPTIONS)
        else:
            channel = aio.secure_channel(target.address, self._credentials, _OPTIONS)
        try:
            connecting = asyncio.ensure_future(channel.channel_ready())
            try:
                if not await done_within(self._context.clock, connecting, CONNECT_LIMIT):
                    raise _unreachable(target.node, f"no connection to {target.address} within {CONNECT_LIMIT:g} s")
            finally:
                await reap(connecting)
            yield channel
        finally:
            await channel.close()


async def _relay(request: web.Request, call: Any, target: Target, context: Context) -> web.StreamResponse:
    """``call`` is the stream of LogsChunk."""
    chunks = call.__aiter__()
    first = asyncio.ensure_future(anext(chunks, None))
    response = web.StreamResponse(headers={"Content-Type": "text/plain; charset=utf-8", "Cache-Control": "no-store"})
    try:
        await done_within(context.clock, first, FIRST_CHUNK_WAIT)
        if first.done() and (error := first.exception()) is not None:
            raise _answer(error, target)
        response.enable_chunked_encoding()
        await response.prepare(request)
        chunk = await first
        while chunk is not None:
            await response.write(chunk.data)
            chunk = await anext(chunks, None)
    except aio.AioRpcError as error:
        # The answer has begun: only a connection that breaks tells the client that the log is not complete.
        logger.warning(
            "the log broke off", extra={"fields": {"node": target.node, "shard": target.shard, "cause": error.details()}}
        )
        if request.transport is not None:
            request.transport.abort()
        return response
    finally:
        await reap(first)
    await response.write_eof()
    return response


def _number(request: web.Request, name: str, default: int, most: int) -> int:
    text = request.query.get(name, str(default))
    if not text.isascii() or not text.isdigit() or int(text) > most:
        raise ApiError(422, "invalid", f"{name}: {text[:40]!r} is not a number from 0 to {most}", f"correct {name}")
    return int(text)


def _unreachable(node: str, cause: str) -> ApiError:
    return ApiError(
        502,
        "agent_unreachable",
        f"the agent of node {node} cannot be asked: {cause}",
        f"see whether llmgw-agent runs on {node} and its gRPC port is open to this coordinator; the log file is on the node",
    )


def _answer(error: BaseException, target: Target) -> BaseException:
    if not isinstance(error, aio.AioRpcError):
        return error
    if error.code() is grpc.StatusCode.NOT_FOUND:
        return ApiError(
            404,
            "log_not_found",
            f"node {target.node} has no log of {target.shard}: {error.details()}",
            "wait until it has started",
        )
    return _unreachable(target.node, f"{error.code().name.lower()}: {error.details()}")
