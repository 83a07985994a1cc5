"""``/admin/v1/weights`` and ``/admin/v1/nodes/{node}/weights``: what nodes keep, relayed from their agents."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from aiohttp import web
from grpc import aio

from llmgw_base.etcd.timers import done_within, reap
from llmgw_coordinator.api.agents import Agents, Line, unreachable
from llmgw_coordinator.api.bodies import checked, read_object
from llmgw_coordinator.api.context import Context
from llmgw_coordinator.api.problems import ApiError
from llmgw_coordinator.api.relay import relay_lines
from llmgw_coordinator.api.routes import Route, as_json
from llmgw_coordinator.api.weights_shapes import (
    FetchBody,
    FleetWeights,
    NodeWeights,
    RemovedWeightsView,
    Silent,
    VerifyBody,
    fetch_step,
    node_weights,
    verify_step,
)
from llmgw_proto import weights_pb2 as pb
from llmgw_proto.weights_pb2_grpc import WeightsStub

#: Seconds that one agent may take to list or remove.
ANSWER_LIMIT = 15.0
#: Nodes that are asked at the same time for the whole fleet, and seconds for all of them.
AT_ONCE = 64
FLEET_LIMIT = 20.0
#: The longest that a fetch or a verification is followed.
LONGEST = 7 * 86_400.0
_NODE = "/admin/v1/nodes/{node}/weights"
_ERRORS = (404, 409, 422, 502)


class Weights:
    def __init__(self, context: Context, agents: Agents) -> None:
        self._context, self._agents = context, agents

    def routes(self) -> list[Route]:
        def stream(word: str, name: str, summary: str, handler: Any, body: Any) -> Route:
            return Route(
                "POST",
                f"{_NODE}/{word}",
                name,
                summary + "; one JSON object a line, the last with the result or an error",
                handler,
                {200: None},
                body,
                errors=_ERRORS,
                content_type="application/x-ndjson",
                limit=LONGEST,
            )

        return [
            Route("GET", "/admin/v1/weights", "listWeights", "The weights on all live nodes", self._fleet, {200: FleetWeights}),
            Route("GET", _NODE, "nodeWeights", "The weights on one node", self._node, {200: NodeWeights}, errors=(404, 502)),
            Route(
                "DELETE",
                f"{_NODE}/{{weights}}",
                "removeWeights",
                "Remove weights, by key, source or the beginning of the content's digest",
                self._remove,
                {200: RemovedWeightsView},
                errors=_ERRORS,
                limit=ANSWER_LIMIT + 5,
            ),
            stream(
                "verify", "verifyWeights", "Read weights again and compare them with their digests", self._verify, VerifyBody
            ),
            stream("fetch", "fetchWeights", "Fetch a source ahead of time", self._fetch, FetchBody),
        ]

    async def _fleet(self, request: web.Request) -> web.Response:
        nodes = sorted(self._context.facts().view.alive)
        found: dict[str, NodeWeights] = {}
        silent: dict[str, str] = dict.fromkeys(nodes, f"not asked within {FLEET_LIMIT:g} s")
        turns = asyncio.Semaphore(AT_ONCE)

        async def ask(node: str) -> None:
            async with turns:
                try:
                    found[node] = await self._list(node)
                    del silent[node]
                except ApiError as error:
                    silent[node] = error.message

        asked = asyncio.gather(*(ask(node) for node in nodes))
        try:
            if await done_within(self._context.clock, asked, FLEET_LIMIT):
                asked.result()
        finally:
            await reap(asked)
        return as_json(
            FleetWeights(
                nodes=[found[node] for node in sorted(found)],
                unreachable=[Silent(node=node, cause=cause) for node, cause in sorted(silent.items())],
            )
        )

    async def _node(self, request: web.Request) -> web.Response:
        return as_json(await self._list(request.match_info["node"]))

    async def _list(self, node: str) -> NodeWeights:
        return node_weights(node, await self._ask(node, lambda stub: stub.List, pb.ListWeightsRequest()))

    async def _remove(self, request: web.Request) -> web.Response:
        wish = pb.RemoveWeightsRequest(name=request.match_info["weights"])
        removed = await self._ask(request.match_info["node"], lambda stub: stub.Remove, wish)
        return as_json(RemovedWeightsView(sources=list(removed.sources), freed_bytes=removed.freed_bytes))

    async def _verify(self, request: web.Request) -> web.StreamResponse:
        body = checked(VerifyBody, await read_object(request))
        return await self._follow(
            request, lambda stub: stub.Verify, pb.VerifyWeightsRequest(name=body.weights or ""), verify_step, _answer
        )

    async def _fetch(self, request: web.Request) -> web.StreamResponse:
        body = checked(FetchBody, await read_object(request))
        return await self._follow(
            request, lambda stub: stub.Fetch, pb.FetchWeightsRequest(source=body.source), fetch_step, _fetch_answer
        )

    async def _follow(
        self,
        request: web.Request,
        call: Callable[[Any], Callable[..., Any]],
        wish: Any,
        shape: Callable[[Any], Any],
        answer: Callable[[str, aio.AioRpcError], ApiError],
    ) -> web.StreamResponse:
        node = request.match_info["node"]
        async with self._agents.line(node) as line:
            steps = call(_stub(line))(wish, metadata=line.metadata)
            return await relay_lines(request, steps, shape, lambda error: answer(node, error), self._context.clock, line.gone)

    async def _ask(self, node: str, call: Callable[[Any], Callable[..., Awaitable[Any]]], wish: Any) -> Any:
        async with self._agents.line(node) as line:
            try:
                return await call(_stub(line))(wish, metadata=line.metadata, timeout=ANSWER_LIMIT)
            except aio.AioRpcError as error:
                raise _answer(node, error) from error


def _stub(line: Line) -> Any:
    return WeightsStub(line.channel)  # type: ignore[no-untyped-call]  # generated


def _fetch_answer(node: str, error: aio.AioRpcError) -> ApiError:
    if error.code() is grpc.StatusCode.NOT_FOUND:
        said = f"node {node}: {error.details()}"
        return ApiError(404, "source_not_found", said, "correct the source; docs/weights.md has the forms there are")
    return _answer(node, error)


def _answer(node: str, error: aio.AioRpcError) -> ApiError:
    said = str(error.details())
    match error.code():
        case grpc.StatusCode.NOT_FOUND:
            return ApiError(404, "weights_not_found", f"node {node}: {said}", "see `llmgwctl weights list` for what there is")
        case grpc.StatusCode.INVALID_ARGUMENT:
            return ApiError(422, "invalid", said, "correct the source")
        case grpc.StatusCode.FAILED_PRECONDITION:
            return ApiError(409, "in_use", f"node {node}: {said}", "remove or move the models that use them first")
        case grpc.StatusCode.ABORTED:
            return ApiError(409, "weights_failed", f"node {node}: {said}", "see the message, and the log of the node's agent")
        case grpc.StatusCode.UNIMPLEMENTED:
            return ApiError(
                502, "agent_too_old", f"the agent of node {node} does not know this call", "update llmgw-agent there"
            )
        case code:
            return unreachable(node, f"{code.name.lower()}: {said}")
