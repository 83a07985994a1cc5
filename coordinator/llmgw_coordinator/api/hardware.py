"""What operators ask of a node's hardware: quarantines, power caps, bandwidth tests; relayed to its agent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from aiohttp import web
from grpc import aio

from llmgw_coordinator.api.agents import Agents, unreachable
from llmgw_coordinator.api.bodies import checked, read_object
from llmgw_coordinator.api.problems import ApiError
from llmgw_coordinator.api.routes import Route, as_json
from llmgw_coordinator.api.shapes import (
    BandwidthBody,
    BandwidthView,
    HoldBody,
    LiftBody,
    PowerBody,
    PowerView,
    StandingView,
)
from llmgw_proto.agent_pb2 import BandwidthRequest, HoldRequest, LiftRequest, SetPowerRequest

#: Seconds that an agent may take to answer; a lift looks at the hardware again.
ANSWER_LIMIT = 30.0
#: Beyond the time of a bandwidth test.
TEST_SLACK = 100.0
_LONGEST_TEST = 60.0
_GPU = "/admin/v1/nodes/{node}/gpus/{gpu}"
_ERRORS = (404, 409, 422, 502)


class Hardware:
    def __init__(self, agents: Agents) -> None:
        self._agents = agents

    def routes(self) -> list[Route]:
        def gpu(word: str, name: str, summary: str, handler: Any, body: Any, view: Any) -> Route:
            path = f"{_GPU}/{word}"
            return Route("POST", path, name, summary, handler, {200: view}, body, errors=_ERRORS, limit=ANSWER_LIMIT + 5)

        return [
            gpu("hold", "holdGpu", "Set a GPU, or a port such as mlx5_0:1, aside", self._hold, HoldBody, StandingView),
            gpu("lift", "liftGpu", "Lift a GPU's or port's quarantine and test it again", self._lift, LiftBody, StandingView),
            gpu("power", "setGpuPower", "Set a GPU's power cap", self._power, PowerBody, PowerView),
            Route(
                "POST",
                "/admin/v1/nodes/{node}/bandwidth",
                "measureBandwidth",
                "Measure the bandwidth to another node",
                self._bandwidth,
                {200: BandwidthView},
                BandwidthBody,
                errors=_ERRORS,
                limit=_LONGEST_TEST + TEST_SLACK + 5,
            ),
        ]

    async def _hold(self, request: web.Request) -> web.Response:
        body = checked(HoldBody, await read_object(request))
        wish = HoldRequest(subject=request.match_info["gpu"], reason=body.reason)
        found = await self._ask(request, lambda stub: stub.Hold, wish)
        return as_json(StandingView(subject=found.subject, quarantine=found.quarantine or None))

    async def _lift(self, request: web.Request) -> web.Response:
        checked(LiftBody, await read_object(request))
        found = await self._ask(request, lambda stub: stub.Lift, LiftRequest(subject=request.match_info["gpu"]))
        return as_json(StandingView(subject=found.subject, quarantine=found.quarantine or None))

    async def _power(self, request: web.Request) -> web.Response:
        body = checked(PowerBody, await read_object(request))
        wish = SetPowerRequest(gpu=request.match_info["gpu"], watts=body.watts or 0)
        found = await self._ask(request, lambda stub: stub.SetPower, wish)
        return as_json(PowerView(gpu=found.gpu, watts=found.watts))

    async def _bandwidth(self, request: web.Request) -> web.Response:
        body = checked(BandwidthBody, await read_object(request))
        wish = BandwidthRequest(peer=body.peer, force=body.force, seconds=body.seconds)
        found = await self._ask(request, lambda stub: stub.Bandwidth, wish, body.seconds + TEST_SLACK)
        return as_json(
            BandwidthView(
                node=request.match_info["node"],
                peer=body.peer,
                method=found.method,
                gigabits_per_second=round(found.gigabits_per_second, 3),
                bytes=found.bytes,
                seconds=round(found.seconds, 3),
                streams=found.streams,
                port=found.port or None,
                peer_port=found.peer_port or None,
                note=found.note,
            )
        )

    async def _ask(
        self, request: web.Request, call: Callable[[Any], Callable[..., Awaitable[Any]]], wish: Any, limit: float = ANSWER_LIMIT
    ) -> Any:
        node = request.match_info["node"]
        async with self._agents.line(node) as line:
            try:
                return await call(line.stub)(wish, metadata=line.metadata, timeout=limit)
            except aio.AioRpcError as error:
                raise _answer(node, error) from error


def _answer(node: str, error: aio.AioRpcError) -> ApiError:
    said = str(error.details())
    match error.code():
        case grpc.StatusCode.NOT_FOUND:
            return ApiError(404, "not_on_node", said, "see `llmgwctl gpu list` and `llmgwctl node show` for what there is")
        case grpc.StatusCode.INVALID_ARGUMENT:
            return ApiError(422, "invalid", said, "correct the request")
        case grpc.StatusCode.FAILED_PRECONDITION:
            return ApiError(409, "refused", said, "see the message; a bandwidth test can be forced")
        case grpc.StatusCode.ABORTED:
            return ApiError(502, "test_failed", said, "see the message and the logs of both agents")
        case grpc.StatusCode.UNIMPLEMENTED:
            return ApiError(
                502, "agent_too_old", f"the agent of node {node} does not know this call", "update llmgw-agent there"
            )
        case code:
            return unreachable(node, f"{code.name.lower()}: {said}")
