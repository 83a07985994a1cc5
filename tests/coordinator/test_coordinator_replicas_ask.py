"""Details, draining, restarts and telemetry, relayed from agents."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from grpc import StatusCode, aio

from llmgw_base.clock import SystemClock
from llmgw_base.secrets import agent_token
from llmgw_coordinator.api.replicas_shapes import plain
from llmgw_proto import keyspace
from llmgw_proto import shards_pb2 as pb
from llmgw_proto.records import AliveRecord, ClusterRecord
from llmgw_proto.shards_pb2_grpc import ShardsServicer, add_ShardsServicer_to_server
from llmgw_testing.coordinators import TOKEN, Admin, Cluster, admin_of
from llmgw_testing.worlds import model

SECRET = "ab" * 32


class FakeShards(ShardsServicer):
    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.refusal: tuple[StatusCode, str] | None = None

    async def _heard(self, request: Any, context: Any) -> None:
        self.asked.append(request)
        if dict(context.invocation_metadata()).get("authorization") != f"Bearer {agent_token(SECRET, 'n1')}":
            await context.abort(StatusCode.UNAUTHENTICATED, "the token is wrong")
        if self.refusal is not None:
            await context.abort(*self.refusal)

    async def Details(self, request: Any, context: Any) -> pb.ShardDetails:  # noqa: N802 - gRPC's name
        await self._heard(request, context)
        return pb.ShardDetails(
            shard=request.shard,
            state="Ready",
            history=[pb.Move(at=1.5, state="Ready")],
            argv=["serve", "***"],
            ports={"http": 20000},
            figures={"vllm:generation_tokens_total": 7.0},
            measured=pb.Measured(fetch=2.5, peak_gpu_bytes={"GPU-1": 5}),
        )

    async def Drain(self, request: Any, context: Any) -> pb.DrainState:  # noqa: N802 - gRPC's name
        await self._heard(request, context)
        return pb.DrainState(shard=request.shard, drained=True, requests=3, connections=4)

    async def Undrain(self, request: Any, context: Any) -> pb.DrainState:  # noqa: N802 - gRPC's name
        await self._heard(request, context)
        return pb.DrainState(shard=request.shard)

    async def Restart(self, request: Any, context: Any) -> pb.RestartState:  # noqa: N802 - gRPC's name
        await self._heard(request, context)
        return pb.RestartState(shard=request.shard, attempt="a1")

    async def Telemetry(  # noqa: N802 - gRPC's name
        self, request: Any, context: Any
    ) -> AsyncIterator[pb.TelemetrySample]:
        await self._heard(request, context)
        for number in range(request.count):
            gpu = pb.GpuTelemetry(uuid="GPU-1", utilization=50)
            yield pb.TelemetrySample(
                at=float(number), gpus=[gpu], shards=[pb.ShardTelemetry(shard="m-1.0", gpu_bytes={"G": 1})]
            )


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[tuple[FakeShards, Admin, str]]:
    """The id of a replica, too."""
    cluster, agent, server = Cluster(), FakeShards(), aio.server()
    await cluster.add_node("n1")
    record = ClusterRecord(id="i", name="test", created_at=0.0, engine_secret=SECRET)
    await cluster.hand.put(keyspace.CLUSTER, record.encode())
    await cluster.apply(model("m"))
    add_ShardsServicer_to_server(agent, server)  # type: ignore[no-untyped-call]  # generated
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        async with cluster.coordinator() as coordinator, admin_of(coordinator, SystemClock()) as admin:
            alive = AliveRecord(node="n1", version="0", started_at=0.0, pid=1, grpc_address=address)
            await cluster.hand.put(keyspace.alive("n1"), alive.encode())
            await cluster.live()
            (wish,) = await cluster.replicas()
            yield agent, admin, wish.replica
    finally:
        await server.stop(None)


def test_details_are_shown_as_the_agent_tells_them() -> None:
    async def body() -> None:
        async with serving() as (agent, admin, replica):
            answer = await admin.ask("GET", f"/admin/v1/replicas/{replica}/details")
            assert answer.status == 200
            assert agent.asked == [pb.DetailsRequest(shard=f"{replica}.0")]
            found = answer.body
            assert (found["node"], found["shard"], found["state"], found["drained"]) == ("n1", f"{replica}.0", "Ready", False)
            assert found["history"] == [{"at": 1.5, "state": "Ready", "reason": ""}]
            assert (found["ports"], found["requests"]) == ({"http": 20000}, None)
            assert (found["measured"]["install"], found["measured"]["fetch"]) == (None, 2.5)
            assert found["measured"]["peak_gpu_bytes"] == {"GPU-1": 5}
            for path, status in (
                ("/admin/v1/replicas/nobody/details", 404),
                (f"/admin/v1/replicas/{replica}/details?rank=1", 404),
                (f"/admin/v1/replicas/{replica}/details?rank=x", 422),
                (f"/admin/v1/replicas/{replica}/details?rank=0.5", 422),
            ):
                assert (await admin.ask("GET", path)).status == status

    asyncio.run(body())


def test_draining_and_restarts_go_to_the_agent_and_refusals_come_back() -> None:
    async def body() -> None:
        async with serving() as (agent, admin, replica):
            path, shard = f"/admin/v1/replicas/{replica}", f"{replica}.0"
            drained = await admin.ask("POST", f"{path}/drain", {})
            assert drained.body == {"replica": replica, "node": "n1", "drained": True, "requests": 3, "connections": 4}
            back = await admin.ask("POST", f"{path}/undrain", {})
            assert (back.body["drained"], back.body["requests"]) == (False, None)
            restarted = await admin.ask("POST", f"{path}/restart", {"drain_seconds": 1.5})
            assert restarted.body == {"replica": replica, "node": "n1", "attempt": "a1"}
            await admin.ask("POST", f"{path}/restart", {})
            assert agent.asked == [
                pb.DrainRequest(shard=shard),
                pb.UndrainRequest(shard=shard),
                pb.RestartRequest(shard=shard, drain_seconds=1.5),
                pb.RestartRequest(shard=shard),
            ]
            assert (await admin.ask("POST", f"{path}/restart", {"drain_seconds": -1})).status == 422
            assert (await admin.ask("POST", f"{path}/drain", {"x": 1})).status == 422
            for code, status in (
                (StatusCode.NOT_FOUND, 404),
                (StatusCode.FAILED_PRECONDITION, 409),
                (StatusCode.UNIMPLEMENTED, 502),
                (StatusCode.INTERNAL, 502),
            ):
                agent.refusal = (code, "because of a reason")
                answer = await admin.ask("POST", f"{path}/drain", {})
                assert answer.status == status
            assert "because of a reason" in answer.body["error"]["message"]

    asyncio.run(body())


def test_telemetry_comes_line_by_line() -> None:
    async def body() -> None:
        async with serving() as (agent, admin, _):
            path, headers = "/admin/v1/nodes/n1/telemetry?every=0.5&count=3", {"Authorization": f"Bearer {TOKEN}"}
            async with admin.http.get(path, headers=headers) as answer:
                assert answer.headers["Content-Type"] == "application/x-ndjson"
                samples = [json.loads(line) async for line in answer.content]
            assert [each["at"] for each in samples] == [0.0, 1.0, 2.0]
            assert samples[0]["node"] == "n1"
            assert samples[0]["gpus"][0]["utilization"] == 50
            assert samples[0]["shards"][0]["gpu_bytes"] == {"G": 1}
            assert agent.asked == [pb.TelemetryRequest(every=0.5, count=3)]
            assert (await admin.ask("GET", "/admin/v1/nodes/n1/telemetry?every=0")).status == 422
            assert (await admin.ask("GET", "/admin/v1/nodes/n2/telemetry")).status == 404

    asyncio.run(body())


def test_messages_as_plain_values() -> None:
    measured = plain(pb.Measured(install=0.0, peak_gpu_bytes={"G": 1}))
    assert (measured["install"], measured["fetch"], measured["peak_gpu_bytes"]) == (0.0, None, {"G": 1})
    assert plain(pb.ShardDetails())["measured"] == plain(pb.Measured())
