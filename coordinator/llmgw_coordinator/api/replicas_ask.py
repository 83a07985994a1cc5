"""What is asked of a replica's agent: details, draining, restarts; and a node's telemetry. Relayed, nothing is kept."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import grpc
from aiohttp import web
from grpc import aio

from llmgw_coordinator.api.agents import Agents, Line, unreachable
from llmgw_coordinator.api.bodies import checked, read_object
from llmgw_coordinator.api.context import Context
from llmgw_coordinator.api.problems import ApiError, not_found
from llmgw_coordinator.api.relay import relay_lines
from llmgw_coordinator.api.replica_view import Part, whole
from llmgw_coordinator.api.replicas_shapes import (
    DrainView,
    EmptyBody,
    NodeFigures,
    RestartBody,
    RestartView,
    ShardDetailsView,
)
from llmgw_coordinator.api.routes import Query, Route, as_json
from llmgw_proto import shards_pb2 as pb
from llmgw_proto.shards_pb2_grpc import ShardsStub

#: Seconds that an agent may take to answer.
ANSWER_LIMIT = 15.0
_REPLICA = "/admin/v1/replicas/{replica}"
_MOST_RANKS = 1024


class ReplicasAsk:
    def __init__(self, context: Context, agents: Agents) -> None:
        self._context, self._agents = context, agents

    def routes(self) -> list[Route]:
        def act(word: str, name: str, summary: str, handler: Any, body: Any, view: Any) -> Route:
            path = f"{_REPLICA}/{word}"
            limit = ANSWER_LIMIT + 5
            return Route("POST", path, name, summary, handler, {200: view}, body, errors=(404, 409, 422, 502), limit=limit)

        rank = Query("rank", {"type": "integer", "minimum": 0, "default": 0}, "of which shard, when it spans several nodes")
        return [
            Route(
                "GET",
                f"{_REPLICA}/details",
                "replicaDetails",
                "All that its agent knows of a replica's shard",
                self._details,
                {200: ShardDetailsView},
                query=(rank,),
                errors=(404, 409, 422, 502),
            ),
            act(
                "drain", "drainReplica", "Take a replica out of routing; its engine stays up", self._drain, EmptyBody, DrainView
            ),
            act("undrain", "undrainReplica", "Bring a drained replica back", self._undrain, EmptyBody, DrainView),
            act(
                "restart",
                "restartReplica",
                "Drain a replica, end its engine and start it again; answers when that has begun",
                self._restart,
                RestartBody,
                RestartView,
            ),
            Route(
                "GET",
                "/admin/v1/nodes/{node}/telemetry",
                "nodeTelemetry",
                "Figures of a node's GPUs and replicas, one JSON object a line",
                self._telemetry,
                {200: None},
                query=(
                    Query("every", {"type": "number", "minimum": 0.2, "maximum": 3600, "default": 2}, "seconds between two"),
                    Query("count", {"type": "integer", "minimum": 0, "default": 1}, "how many; 0: until the client leaves"),
                ),
                errors=(404, 422, 502),
                content_type="application/x-ndjson",
            ),
        ]

    async def _details(self, request: web.Request) -> web.Response:
        part = self._part(request, int(_number(request, "rank", 0, 0, _MOST_RANKS, whole=True)))
        found = await self._ask(part, lambda stub: stub.Details, pb.DetailsRequest(shard=part.known.shard))
        return as_json(ShardDetailsView.of(part.node, found))

    async def _drain(self, request: web.Request) -> web.Response:
        return await self._set(request, lambda stub: stub.Drain, pb.DrainRequest)

    async def _undrain(self, request: web.Request) -> web.Response:
        return await self._set(request, lambda stub: stub.Undrain, pb.UndrainRequest)

    async def _set(
        self, request: web.Request, call: Callable[[Any], Callable[..., Awaitable[Any]]], wish: Callable[..., Any]
    ) -> web.Response:
        checked(EmptyBody, await read_object(request))
        part = self._part(request)
        found = await self._ask(part, call, wish(shard=part.known.shard))
        return as_json(
            DrainView(
                replica=part.known.replica,
                node=part.node,
                drained=found.drained,
                requests=found.requests if found.HasField("requests") else None,
                connections=found.connections,
            )
        )

    async def _restart(self, request: web.Request) -> web.Response:
        body = checked(RestartBody, await read_object(request))
        part = self._part(request)
        wish = pb.RestartRequest(shard=part.known.shard, drain_seconds=body.drain_seconds)
        found = await self._ask(part, lambda stub: stub.Restart, wish)
        return as_json(RestartView(replica=part.known.replica, node=part.node, attempt=found.attempt))

    async def _telemetry(self, request: web.Request) -> web.StreamResponse:
        node = request.match_info["node"]
        every = _number(request, "every", 2, 0.2, 3600)
        count = int(_number(request, "count", 1, 0, 2**31, whole=True))
        async with self._agents.line(node) as line:
            samples = _stub(line).Telemetry(pb.TelemetryRequest(every=every, count=count), metadata=line.metadata)
            return await relay_lines(
                request,
                samples,
                partial(NodeFigures.of, node),
                lambda error: _answer(node, error),
                self._context.clock,
                line.gone,
            )

    def _part(self, request: web.Request, rank: int = 0) -> Part:
        """The shard that acts for the replica: the head's, unless another is asked for."""
        replica = request.match_info["replica"]
        parts = whole(self._context.facts().view).get(replica)
        if parts is None:
            raise not_found("replica", replica, see="replica list")
        for each in parts:
            if each.known.rank == rank:
                return each
        ranks = ", ".join(str(each.known.rank) for each in parts)
        raise ApiError(
            404, "shard_not_found", f"replica {replica} has no shard of rank {rank}, only {ranks}", "ask for one that it has"
        )

    async def _ask(self, part: Part, call: Callable[[Any], Callable[..., Awaitable[Any]]], wish: Any) -> Any:
        async with self._agents.line(part.node) as line:
            try:
                return await call(_stub(line))(wish, metadata=line.metadata, timeout=ANSWER_LIMIT)
            except aio.AioRpcError as error:
                raise _answer(part.node, error) from error


def _stub(line: Line) -> Any:
    return ShardsStub(line.channel)  # type: ignore[no-untyped-call]  # generated


def _number(request: web.Request, name: str, default: float, least: float, most: float, *, whole: bool = False) -> float:
    text = request.query.get(name, str(default))
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value <= most or (whole and not value.is_integer()):
        kind = "whole number" if whole else "number"
        raise ApiError(422, "invalid", f"{name}: {text[:40]!r} is not a {kind} from {least:g} to {most:g}", f"correct {name}")
    return value


def _answer(node: str, error: aio.AioRpcError) -> ApiError:
    said = str(error.details())
    match error.code():
        case grpc.StatusCode.NOT_FOUND:
            return ApiError(404, "not_on_node", f"node {node}: {said}", "wait until its agent has taken it up")
        case grpc.StatusCode.FAILED_PRECONDITION:
            return ApiError(409, "not_now", f"node {node}: {said}", "see its state with `llmgwctl replica show`")
        case grpc.StatusCode.INVALID_ARGUMENT:
            return ApiError(422, "invalid", said, "correct the request")
        case grpc.StatusCode.UNIMPLEMENTED:
            return ApiError(
                502, "agent_too_old", f"the agent of node {node} does not know this call", "update llmgw-agent there"
            )
        case code:
            return unreachable(node, f"{code.name.lower()}: {said}")
