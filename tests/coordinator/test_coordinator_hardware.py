"""Quarantines, power caps and bandwidth tests, relayed to agents."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from grpc import StatusCode, aio

from llmgw_base.clock import SystemClock
from llmgw_base.secrets import agent_token
from llmgw_proto import keyspace
from llmgw_proto.agent_pb2 import BandwidthResult, PowerLimit, Standing
from llmgw_proto.agent_pb2_grpc import AgentServicer, add_AgentServicer_to_server
from llmgw_proto.records import AliveRecord, ClusterRecord
from llmgw_testing.coordinators import Admin, Cluster, admin_of

SECRET = "ab" * 32
GPU = "/admin/v1/nodes/n1/gpus/GPU-1"
BANDWIDTH = "/admin/v1/nodes/n1/bandwidth"


class FakeAgent(AgentServicer):
    """Does as it is told and remembers it; with ``refusal`` it refuses everything."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.refusal: tuple[StatusCode, str] | None = None

    async def _take(self, request: Any, context: Any) -> None:
        assert dict(context.invocation_metadata())["authorization"] == f"Bearer {agent_token(SECRET, 'n1')}"
        self.asked.append(request)
        if self.refusal is not None:
            await context.abort(*self.refusal)

    async def Hold(self, request: Any, context: Any) -> Standing:  # noqa: N802 - gRPC's name
        await self._take(request, context)
        return Standing(subject=request.subject, quarantine=f"operator: {request.reason}")

    async def Lift(self, request: Any, context: Any) -> Standing:  # noqa: N802 - gRPC's name
        await self._take(request, context)
        return Standing(subject=request.subject)

    async def SetPower(self, request: Any, context: Any) -> PowerLimit:  # noqa: N802 - gRPC's name
        await self._take(request, context)
        return PowerLimit(gpu=request.gpu, watts=request.watts or 700)

    async def Bandwidth(self, request: Any, context: Any) -> BandwidthResult:  # noqa: N802 - gRPC's name
        await self._take(request, context)
        return BandwidthResult(
            method="rdma", gigabits_per_second=391.23456, bytes=10, seconds=5, port="mlx5_0:1", peer_port="mlx5_1:1"
        )


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[tuple[Cluster, FakeAgent, Admin]]:
    agent, server, cluster = FakeAgent(), aio.server(), Cluster()
    add_AgentServicer_to_server(agent, server)  # type: ignore[no-untyped-call]  # generated
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    await cluster.add_node("n1")
    record = ClusterRecord(id="i", name="test", created_at=0.0, engine_secret=SECRET)
    await cluster.hand.put(keyspace.CLUSTER, record.encode())
    alive = AliveRecord(node="n1", version="0", started_at=0.0, pid=1, grpc_address=address)
    await cluster.hand.put(keyspace.alive("n1"), alive.encode())
    try:
        async with cluster.coordinator() as coordinator, admin_of(coordinator, SystemClock()) as admin:
            yield cluster, agent, admin
    finally:
        await server.stop(None)


def test_wishes_reach_the_agent_and_answers_come_back() -> None:
    async def test() -> None:
        async with serving() as (_, agent, admin):
            held = await admin.ask("POST", GPU + "/hold", {"reason": "loud"})
            assert (held.status, held.body) == (200, {"subject": "GPU-1", "quarantine": "operator: loud"})
            lifted = await admin.ask("POST", "/admin/v1/nodes/n1/gpus/mlx5_0%3A1/lift", {})
            assert lifted.body == {"subject": "mlx5_0:1", "quarantine": None}
            assert (await admin.ask("POST", GPU + "/power", {"watts": 350})).body == {"gpu": "GPU-1", "watts": 350}
            assert (await admin.ask("POST", GPU + "/power", {"watts": None})).body == {"gpu": "GPU-1", "watts": 700}
            measured = (await admin.ask("POST", BANDWIDTH, {"peer": "n2", "force": True, "seconds": 2})).body
            assert (measured["gigabits_per_second"], measured["port"], measured["peer_port"]) == (
                391.235,
                "mlx5_0:1",
                "mlx5_1:1",
            )
            assert (agent.asked[-1].peer, agent.asked[-1].force, agent.asked[-1].seconds) == ("n2", True, 2)

    asyncio.run(test())


@pytest.mark.parametrize(
    ("code", "status", "error"),
    [
        (StatusCode.NOT_FOUND, 404, "not_on_node"),
        (StatusCode.INVALID_ARGUMENT, 422, "invalid"),
        (StatusCode.FAILED_PRECONDITION, 409, "refused"),
        (StatusCode.ABORTED, 502, "test_failed"),
        (StatusCode.UNIMPLEMENTED, 502, "agent_too_old"),
        (StatusCode.UNAUTHENTICATED, 502, "agent_unreachable"),
    ],
)
def test_refusals_have_a_status_and_keep_their_words(code: StatusCode, status: int, error: str) -> None:
    async def test() -> None:
        async with serving() as (_, agent, admin):
            agent.refusal = (code, "because of this")
            for path, body in ((GPU + "/lift", {}), (BANDWIDTH, {"peer": "n2"})):
                answer = await admin.ask("POST", path, body)
                assert (answer.status, answer.error) == (status, error)
                assert "because of this" in answer.body["error"]["message"] or code is StatusCode.UNIMPLEMENTED

    asyncio.run(test())


def test_what_makes_no_sense_reaches_no_agent() -> None:
    async def test() -> None:
        async with serving() as (cluster, agent, admin):
            for path, body in (
                (GPU + "/power", {}),
                (GPU + "/power", {"watts": 0}),
                (GPU + "/power", {"watts": "much"}),
                (GPU + "/lift", {"why": "so"}),
                (GPU + "/hold", {"reason": "x" * 501}),
                (BANDWIDTH, {}),
                (BANDWIDTH, {"peer": "n2", "seconds": 61}),
            ):
                assert (await admin.ask("POST", path, body)).status == 422, (path, body)
            assert (await admin.ask("POST", GPU + "/lift", {}, token=None)).status == 401
            assert (await admin.ask("POST", GPU.replace("n1", "n9") + "/lift", {})).error == "node_not_found"
            await cluster.vanish("n1")
            await cluster.live()
            assert (await admin.ask("POST", GPU + "/lift", {})).error == "agent_unreachable"
            assert agent.asked == []

    asyncio.run(test())
