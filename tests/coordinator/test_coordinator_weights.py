"""Weights of nodes, relayed from agents."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from grpc import StatusCode, aio
from yarl import URL

from llmgw_base.clock import SystemClock
from llmgw_base.secrets import agent_token
from llmgw_coordinator.api import relay
from llmgw_proto import keyspace
from llmgw_proto import weights_pb2 as pb
from llmgw_proto.records import AliveRecord, ClusterRecord
from llmgw_proto.weights_pb2_grpc import WeightsServicer, add_WeightsServicer_to_server
from llmgw_testing.coordinators import TOKEN, Admin, Cluster, admin_of

SECRET = "ab" * 32
NODE = "/admin/v1/nodes/n1/weights"


class FakeWeights(WeightsServicer):
    """Does as it is told and remembers it; with ``refusal`` it refuses, streams after their first step."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.refusal: tuple[StatusCode, str] | None = None
        self.late = self.hangs = False

    async def _take(self, request: Any, context: Any) -> None:
        assert dict(context.invocation_metadata())["authorization"] == f"Bearer {agent_token(SECRET, 'n1')}"
        self.asked.append(request)
        if self.refusal is not None and not self.late:
            await context.abort(*self.refusal)

    async def List(self, request: Any, context: Any) -> pb.WeightsList:  # noqa: N802 - gRPC's name
        await self._take(request, context)
        facts = pb.WeightsFacts(format="gguf", architecture="llama", layers=3)
        stored = pb.StoredWeights(
            source="hf:org/m", key="k-1", content="cd" * 32, bytes=5, files=1, used_by=["m-1.0"], facts=facts
        )
        return pb.WeightsList(weights=[stored], folder="/w", free_bytes=7)

    async def Remove(self, request: Any, context: Any) -> pb.RemovedWeights:  # noqa: N802 - gRPC's name
        await self._take(request, context)
        return pb.RemovedWeights(sources=[request.name], freed_bytes=5)

    async def Verify(self, request: Any, context: Any) -> AsyncIterator[pb.VerifyProgress]:  # noqa: N802 - gRPC's name
        await self._take(request, context)
        yield pb.VerifyProgress(source="hf:org/m", bytes_done=1, bytes_total=5)
        yield pb.VerifyProgress(bytes_done=5, bytes_total=5, result=pb.Verified(files=1, wrong=["hf:org/m: a"]))

    async def Fetch(self, request: Any, context: Any) -> AsyncIterator[pb.FetchProgress]:  # noqa: N802 - gRPC's name
        await self._take(request, context)
        yield pb.FetchProgress(phase="fetching", bytes_done=1, waits_for="n2")
        if self.hangs:
            await asyncio.Event().wait()
        if self.refusal is not None:
            await context.abort(*self.refusal)
        yield pb.FetchProgress(phase="ready", bytes_done=5, bytes_total=5, path="/w/m", facts=pb.WeightsFacts(format="gguf"))


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[tuple[Cluster, FakeWeights, Admin]]:
    agent, server, cluster = FakeWeights(), aio.server(), Cluster()
    add_WeightsServicer_to_server(agent, server)  # type: ignore[no-untyped-call]  # generated
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    record = ClusterRecord(id="i", name="test", created_at=0.0, engine_secret=SECRET)
    await cluster.hand.put(keyspace.CLUSTER, record.encode())
    for name, where in (("n1", address), ("n2", "127.0.0.1:9")):
        await cluster.add_node(name)
        alive = AliveRecord(node=name, version="0", started_at=0.0, pid=1, grpc_address=where)
        await cluster.hand.put(keyspace.alive(name), alive.encode())
    try:
        async with cluster.coordinator() as coordinator, admin_of(coordinator, SystemClock()) as admin:
            yield cluster, agent, admin
    finally:
        await server.stop(None)


async def lines(admin: Admin, word: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with admin.http.request("POST", URL(f"{NODE}/{word}", encoded=True), json=body, headers=headers) as answer:
        assert (answer.status, answer.content_type) == (200, "application/x-ndjson")
        return [json.loads(each) for each in (await answer.text()).splitlines()]


def test_a_node_is_listed_and_told_to_remove() -> None:
    async def test() -> None:
        async with serving() as (_, _, admin):
            listed = (await admin.ask("GET", NODE)).body
            assert (listed["node"], listed["folder"], listed["free_bytes"], listed["limit_bytes"]) == ("n1", "/w", 7, None)
            (found,) = listed["weights"]
            assert (found["source"], found["used_by"], found["facts"]["layers"]) == ("hf:org/m", ["m-1.0"], 3)
            assert found["facts"]["heads"] is None
            removed = await admin.ask("DELETE", f"{NODE}/hf%3Aorg%2Fm")
            assert removed.body == {"sources": ["hf:org/m"], "freed_bytes": 5}
            assert (await admin.ask("GET", NODE.replace("n1", "n9"))).error == "node_not_found"

    asyncio.run(test())


def test_the_fleet_is_listed_with_those_that_do_not_answer() -> None:
    async def test() -> None:
        async with serving() as (_, _, admin):
            body = (await admin.ask("GET", "/admin/v1/weights")).body
            assert [each["node"] for each in body["nodes"]] == ["n1"]
            (silent,) = body["unreachable"]
            assert silent["node"] == "n2"
            assert "127.0.0.1:9" in silent["cause"]

    asyncio.run(test())


def test_steps_come_line_by_line() -> None:
    async def test() -> None:
        async with serving() as (_, agent, admin):
            verified = await lines(admin, "verify", {})
            assert agent.asked[-1].name == ""
            assert [each["bytes_done"] for each in verified] == [1, 5]
            assert (verified[-1]["files"], verified[-1]["wrong"]) == (1, ["hf:org/m: a"])
            fetched = await lines(admin, "fetch", {"source": "hf:org/m"})
            assert agent.asked[-1].source == "hf:org/m"
            assert fetched[0]["waits_for"] == "n2"
            assert (fetched[-1]["phase"], fetched[-1]["path"], fetched[-1]["facts"]["format"]) == ("ready", "/w/m", "gguf")

    asyncio.run(test())


def test_a_caller_who_leaves_at_the_end_is_no_fault(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Its connection may be lost between two writes, before the task that answers is cancelled."""

    async def lost(response: web.StreamResponse, data: bytes = b"") -> None:
        raise aiohttp.ClientConnectionResetError("Cannot write to closing transport")

    async def test() -> None:
        async with serving() as (_, _, admin):
            with monkeypatch.context() as patched, pytest.raises(aiohttp.ClientError):
                patched.setattr(web.StreamResponse, "write_eof", lost)
                await lines(admin, "verify", {})
            assert len(await lines(admin, "verify", {})) == 2

    with caplog.at_level(logging.INFO):
        asyncio.run(test())
    assert [each for each in caplog.records if each.exc_info] == []
    told = [getattr(each, "fields", {}).get("status") for each in caplog.records if each.name.endswith(".audit")]
    assert told == [499, 200]


@pytest.mark.parametrize(
    ("code", "status", "error"),
    [
        (StatusCode.NOT_FOUND, 404, "source_not_found"),
        (StatusCode.INVALID_ARGUMENT, 422, "invalid"),
        (StatusCode.FAILED_PRECONDITION, 409, "in_use"),
        (StatusCode.ABORTED, 409, "weights_failed"),
        (StatusCode.UNIMPLEMENTED, 502, "agent_too_old"),
        (StatusCode.UNAUTHENTICATED, 502, "agent_unreachable"),
    ],
)
def test_a_refusal_is_a_status_or_the_last_line(
    code: StatusCode, status: int, error: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="llmgw_coordinator.audit")

    async def test() -> None:
        async with serving() as (_, agent, admin):
            agent.refusal = (code, "because of this")
            answer = await admin.ask("POST", f"{NODE}/fetch", {"source": "hf:org/m"})
            assert (answer.status, answer.error) == (status, error)
            agent.late = True
            steps = await lines(admin, "fetch", {"source": "hf:org/m"})
            assert steps[0]["phase"] == "fetching"
            assert steps[-1]["error"]["code"] == error
            assert "because of this" in steps[-1]["error"]["message"] or code is StatusCode.UNIMPLEMENTED

    asyncio.run(test())
    lines_of_audit = [getattr(each, "fields", {}) for each in caplog.records if each.name.endswith(".audit")]
    assert [each["outcome"] for each in lines_of_audit] == [error, error]


def test_a_node_that_is_gone_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "LOOK_EVERY", 0.05)

    async def test() -> None:
        async with serving() as (cluster, agent, admin):
            agent.hangs = True
            headers = {"Authorization": f"Bearer {TOKEN}"}
            async with admin.http.post(f"{NODE}/fetch", json={"source": "hf:org/m"}, headers=headers) as answer:
                assert json.loads(await answer.content.readline())["phase"] == "fetching"
                await cluster.vanish("n1")
                await cluster.live()
                async with asyncio.timeout(30):
                    error = json.loads(await answer.content.readline())["error"]
                assert (error["code"], "node n1" in error["message"]) == ("agent_unreachable", True)

    asyncio.run(test())


def test_what_makes_no_sense_reaches_no_agent() -> None:
    async def test() -> None:
        async with serving() as (_, agent, admin):
            for word, body in (("fetch", {}), ("fetch", {"source": ""}), ("verify", {"weights": 3}), ("verify", {"x": 1})):
                assert (await admin.ask("POST", f"{NODE}/{word}", body)).status == 422
            assert (await admin.ask("DELETE", f"{NODE}/x", token=None)).status == 401
            assert agent.asked == []

    asyncio.run(test())
