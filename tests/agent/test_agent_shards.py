"""What the agent tells of shards over gRPC, and what it does with them when an operator asks."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import msgspec
import pytest
from grpc import aio

from llmgw_agent.engines import kv_event_flags
from llmgw_agent.hardware.raw import GpuSample, Process, Sample
from llmgw_agent.hardware.watch import HardwareWatch
from llmgw_base.secrets import agent_token, engine_key
from llmgw_proto import keyspace, shards_pb2, shards_pb2_grpc
from llmgw_proto.records import AliveRecord, EndpointRecord
from llmgw_testing.agent_harness import SECRET, WITHIN, AgentHarness, fake_wish
from llmgw_testing.gang import REPLICA, gang
from llmgw_testing.quiet_watch import QuietWatch
from llmgw_testing.wait import eventually


@asynccontextmanager
async def calls(agent: AgentHarness, token: str | None = None) -> AsyncIterator[tuple[Any, dict[str, Any]]]:
    """The stub of the agent's present life, and what goes with each call."""

    async def address() -> str | None:
        found = await agent.store.get(keyspace.alive(agent.node))
        return None if found is None else AliveRecord.decode(found.value).grpc_address

    listens = await eventually(address, within=WITHIN, what=f"{agent.node} to be alive")
    assert listens is not None
    bearer = token or agent_token(SECRET, agent.node)
    async with aio.insecure_channel(listens) as channel:
        stub = shards_pb2_grpc.ShardsStub(channel)  # type: ignore[no-untyped-call]  # generated
        yield stub, {"metadata": (("authorization", f"Bearer {bearer}"),), "timeout": 60}


async def refusal(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(aio.AioRpcError) as caught:
        await call
    return caught.value.code(), str(caught.value.details())


async def ask(endpoint: EndpointRecord) -> bytes:
    body = {"model": endpoint.served_name, "messages": [{"role": "user", "content": "x"}], "stream": True}
    headers = {"Authorization": f"Bearer {engine_key(SECRET, endpoint.replica, endpoint.epoch)}"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(endpoint.url + "/v1/chat/completions", json=body, headers=headers) as answer,
    ):
        return await answer.read()


def test_all_that_is_known_of_a_shard_and_no_secret(tmp_path: Path) -> None:
    async def body() -> None:
        async with AgentHarness(tmp_path) as agent:
            await agent.wish(fake_wish("m", env={"PYTHONPATH": fake_wish().env["PYTHONPATH"], "MY_SECRET": "xyzzy"}))
            record = await agent.shard("m-1.0", "Ready")
            async with calls(agent) as (stub, more):
                found = await stub.Details(shards_pb2.DetailsRequest(shard="m-1.0"), **more)
                assert (found.shard, found.replica, found.model, found.engine, found.epoch) == (
                    "m-1.0",
                    "m-1",
                    "m",
                    "command",
                    1,
                )
                assert (found.state, found.drained, found.restarts, found.failures) == ("Ready", False, 0, 0)
                states = [move.state for move in found.history]
                assert states == ["Assigned", "Installing", "Fetching", "Starting", "Probing", "Ready"]
                times = [move.at for move in found.history]
                assert times == sorted(times)
                assert abs(times[-1] - record.updated_at) < 60
                assert found.ports["http"] == record.port
                assert "MY_SECRET" in found.environment
                argv = list(found.argv)
                assert argv[argv.index("--api-key") + 1] == "***"
                assert str(record.port) in argv
                said = str(found)
                assert "xyzzy" not in said
                assert engine_key(SECRET, "m-1", 1) not in said
                (process, *_) = found.processes
                assert process.pid == record.pid
                assert process.rss_bytes > 1_000_000
                assert {log.name for log in found.logs} == {"engine.log"}
                assert found.measured.HasField("start_to_listen")
                assert found.measured.HasField("fetch")
                assert found.measured.peak_rss_bytes == record.peak_rss_bytes > 0
                assert record.timings.install is not None
                assert "***" in (agent.config.state_dir / "logs" / "m-1.0" / "engine.log").read_text()
                missing = await refusal(stub.Details(shards_pb2.DetailsRequest(shard="n-1.0"), **more))
                assert missing[0] is grpc.StatusCode.NOT_FOUND
                assert "shard 'n-1.0' is not on this node" in missing[1]
            async with calls(agent, "wrong") as (stub, more):
                for call in (
                    stub.Details(shards_pb2.DetailsRequest(shard="m-1.0"), **more),
                    stub.Drain(shards_pb2.DrainRequest(shard="m-1.0"), **more),
                    stub.Undrain(shards_pb2.UndrainRequest(shard="m-1.0"), **more),
                    stub.Restart(shards_pb2.RestartRequest(shard="m-1.0"), **more),
                    anext(aiter(stub.KvEvents(shards_pb2.KvEventsRequest(shard="m-1.0"), **more))),
                    anext(aiter(stub.Telemetry(shards_pb2.TelemetryRequest(), **more))),
                ):
                    assert (await refusal(call))[0] is grpc.StatusCode.UNAUTHENTICATED

    asyncio.run(body())


def test_a_drained_shard_keeps_its_engine_and_stays_drained_over_a_restart_of_the_agent(tmp_path: Path) -> None:
    async def body() -> None:
        async with AgentHarness(tmp_path) as agent:
            await agent.wish(fake_wish("m", "--tokens", "4", script="slow"))
            before = await agent.shard("m-1.0", "Ready")

            async def draining(wanted: bool) -> bool:
                found = await agent.endpoint("m-1")
                return found is not None and found.draining is wanted

            endpoint = await agent.endpoint("m-1")
            assert endpoint is not None
            request = asyncio.create_task(ask(endpoint))
            async with calls(agent) as (stub, more):
                state = await stub.Drain(shards_pb2.DrainRequest(shard="m-1.0"), **more)
                assert state.drained
                await eventually(lambda: draining(True), within=WITHIN, what="the flag")
            assert (await request).rstrip().endswith(b"[DONE]")
            record = await agent.shard("m-1.0", "Ready", drained=True)
            assert "taken out of routing by the operator" in record.reason
            await agent.crash()
            await agent.start()

            async def adopted() -> shards_pb2.ShardDetails | None:
                # What etcd knows of the agent before is told until its lease has run out.
                async with calls(agent) as (stub, more):
                    found: shards_pb2.ShardDetails = await stub.Details(shards_pb2.DetailsRequest(shard="m-1.0"), **more)
                return found if found.state == "Ready" else None

            found = await eventually(adopted, within=WITHIN, what="the adopted shard")
            assert found is not None
            assert found.drained
            assert found.processes[0].pid == before.pid
            assert await draining(True)
            async with calls(agent) as (stub, more):
                assert not (await stub.Undrain(shards_pb2.UndrainRequest(shard="m-1.0"), **more)).drained
                await eventually(lambda: draining(False), within=WITHIN, what="the flag to go")
            back = await agent.shard("m-1.0", "Ready", drained=False)
            assert (back.pid, back.restarts, back.reason) == (before.pid, 0, "")

    asyncio.run(body())


def test_a_restart_lets_requests_finish_and_starts_the_engine_at_once(tmp_path: Path) -> None:
    async def body() -> None:
        async with AgentHarness(tmp_path) as agent:
            await agent.wish(fake_wish("m", "--tokens", "4", script="slow", drain_seconds=30.0))
            before = await agent.shard("m-1.0", "Ready")
            endpoint = await agent.endpoint("m-1")
            assert endpoint is not None
            request = asyncio.create_task(ask(endpoint))

            async def running() -> bool:
                found = await stub.Details(shards_pb2.DetailsRequest(shard="m-1.0"), **more)
                return bool(found.connections)

            async with calls(agent) as (stub, more):
                await eventually(running, within=WITHIN, what="the request")
                state = await stub.Restart(shards_pb2.RestartRequest(shard="m-1.0"), **more)
                assert state.attempt
                assert (await request).rstrip().endswith(b"[DONE]")

                async def again() -> bool:
                    record = await agent.record("m-1.0")
                    return record is not None and record.state == "Ready" and record.pid != before.pid

                await eventually(again, within=WITHIN, what="another engine")
                after = await agent.shard("m-1.0", "Ready")
                assert (after.epoch, after.restarts) == (1, 0)
                assert agent.engines("m-1.0") == [after.pid]
                found = await stub.Details(shards_pb2.DetailsRequest(shard="m-1.0"), **more)
                assert found.attempt != state.attempt
                states = [(move.state, move.reason) for move in found.history]
                assert ("Draining", "restarted by the operator") in states
                for seconds in (-1.0, float("nan"), 1e9):
                    wrong = stub.Restart(shards_pb2.RestartRequest(shard="m-1.0", drain_seconds=seconds), **more)
                    assert (await refusal(wrong))[0] is grpc.StatusCode.INVALID_ARGUMENT

    asyncio.run(body())


def test_a_restart_ends_the_pause_after_failures_and_forgets_them(tmp_path: Path) -> None:
    async def body() -> None:
        harness = AgentHarness(tmp_path, restart={"attempts": 1, "cooldown_seconds": 3600})
        async with harness as agent, calls(agent) as (stub, more):
            await agent.wish(fake_wish("m"))
            before = await agent.shard("m-1.0", "Ready")
            assert before.pid is not None
            os.kill(before.pid, signal.SIGKILL)

            async def given_up() -> bool:
                record = await agent.record("m-1.0")
                return record is not None and "the breaker is open" in record.reason

            await eventually(given_up, within=WITHIN, what="the breaker")
            assert (await stub.Details(shards_pb2.DetailsRequest(shard="m-1.0"), **more)).failures == 1
            state = await stub.Restart(shards_pb2.RestartRequest(shard="m-1.0", drain_seconds=0.0), **more)
            assert state.attempt == "", "nothing runs that could be ended"
            await agent.shard("m-1.0", "Ready")
            found = await stub.Details(shards_pb2.DetailsRequest(shard="m-1.0"), **more)
            assert (found.failures, found.restarts) == (0, 1)
            await agent.wish(fake_wish("r", command=["/nowhere/at-all", "{port}"]))
            await agent.shard("r-1.0", "Rejected")
            await stub.Restart(shards_pb2.RestartRequest(shard="r-1.0"), **more)

            async def tried_again() -> bool:
                found = await stub.Details(shards_pb2.DetailsRequest(shard="r-1.0"), **more)
                return [move.state for move in found.history].count("Rejected") == 2

            await eventually(tried_again, within=WITHIN, what="another try of what was rejected")

    asyncio.run(body())


def test_a_restart_of_the_head_restarts_all_of_a_replica_over_nodes(tmp_path: Path) -> None:
    async def body() -> None:
        async with gang(tmp_path, 2) as nodes:
            await nodes.wish(fake_wish())
            first = await nodes.ready(1)
            async with calls(nodes.agents[0]) as (stub, more):
                await stub.Restart(shards_pb2.RestartRequest(shard=f"{REPLICA}.0"), **more)
            second = await nodes.ready(2)
            assert not {record.pid for record in first} & {record.pid for record in second}
            assert second[0].restarts == 0, "nothing failed here"
            assert [len(pids) for pids in nodes.engines()] == [1, 1]
            async with calls(nodes.agents[0]) as (stub, more):
                await stub.Drain(shards_pb2.DrainRequest(shard=f"{REPLICA}.0"), **more)

            async def drained() -> bool:
                found = await nodes.agents[0].endpoint(REPLICA)
                return found is not None and found.draining

            await eventually(drained, within=WITHIN, what="the endpoint to be flagged")
            await nodes.unwish()
            await nodes.nothing_left()

    asyncio.run(body())


def test_kv_events_come_as_they_were_sent_over_restarts_of_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_event_flags, "ENGINES", frozenset({"command"}))

    async def body() -> None:
        async with AgentHarness(tmp_path) as agent, calls(agent) as (stub, more):
            await agent.wish(fake_wish("quiet"))
            await agent.wish(fake_wish("m", policy="kv"))
            before = await agent.shard("m-1.0", "Ready")
            endpoint = await agent.endpoint("m-1")
            assert endpoint is not None
            assert endpoint.kv_events
            (folder,) = agent.config.state_dir.glob("kv")
            assert folder.stat().st_mode & 0o077 == 0
            stream = stub.KvEvents(shards_pb2.KvEventsRequest(shard="m-1.0"), **more)
            got: list[shards_pb2.KvDelivery] = []

            async def read() -> None:
                async for each in stream:
                    got.append(each)

            task = asyncio.create_task(read())

            def after_source(number: int) -> list[shards_pb2.KvDelivery]:
                starts = [at for at, each in enumerate(got) if each.HasField("source") and each.source.number == number]
                return got[starts[0] :] if starts else []

            await eventually(lambda: len(after_source(1)) > 5, within=WITHIN, what="events")
            first, *batches = after_source(1)
            assert (first.source.shard, first.source.epoch, first.source.engine) == ("m-1.0", 1, "command")
            assert [each.batch.seq for each in batches] == list(range(len(batches))), "from the first one on, without gaps"
            assert {each.batch.topic for each in batches} == {"kv@m-1.0@m"}
            _, (event,), _ = msgspec.msgpack.decode(batches[0].batch.payload)
            assert event["block_hashes"] == [before.pid]
            assert before.pid is not None
            os.kill(before.pid, signal.SIGKILL)
            await eventually(lambda: len(after_source(2)) > 3, within=WITHIN, what="events of the next engine")
            again, *later = after_source(2)
            assert again.source.attempt != first.source.attempt
            assert [each.batch.seq for each in later] == list(range(len(later)))
            await agent.unwish("m-1.0")
            code, details = await refusal(task)
            assert code is grpc.StatusCode.NOT_FOUND
            assert "is not on this node" in details
            await agent.shard("quiet-1.0", "Ready")
            code, details = await refusal(anext(aiter(stub.KvEvents(shards_pb2.KvEventsRequest(shard="quiet-1.0"), **more))))
            assert code is grpc.StatusCode.FAILED_PRECONDITION
            assert "does not publish KV-cache events" in details
            await agent.nothing_left("m-1.0", "m-1")
            await eventually(lambda: not list(folder.iterdir()), within=WITHIN, what="sockets to be gone")

    asyncio.run(body())


def test_figures_of_gpus_and_shards(tmp_path: Path) -> None:
    watches: list[HardwareWatch] = []

    class Watch(QuietWatch):
        async def run(self) -> None:
            watches.append(self)
            await super().run()

    async def body() -> None:
        agent = AgentHarness(tmp_path, engines={"stall_seconds": 6.0})
        agent.watch = Watch
        async with agent, calls(agent) as (stub, more):
            await agent.wish(fake_wish("m", "--tokens", "2000", "--token-seconds", "0.02"))
            record = await agent.shard("m-1.0", "Ready")
            endpoint = await agent.endpoint("m-1")
            assert endpoint is not None
            assert record.pid is not None
            request = asyncio.create_task(ask(endpoint))

            def sample(memory: int) -> None:
                processes = [Process(record.pid or 0, memory), Process(os.getpid(), 5 << 30)]
                gpu = GpuSample(
                    index=0, uuid="GPU-1", utilization=[73, 10], memory_used=9 << 30, power=250_000, processes=processes
                )
                for each in watches[0].sample_listeners:
                    each(Sample(gpus=[gpu]))

            async def measured() -> bool:
                found = await agent.record("m-1.0")
                return found is not None and bool(found.peak_gpu_bytes) and found.tokens_per_second is not None

            sample(4 << 30)
            sample(3 << 30)
            await eventually(measured, within=WITHIN, what="figures in the shard's record")
            found = await agent.record("m-1.0")
            assert found is not None
            assert found.peak_gpu_bytes == {"GPU-1": 4 << 30}
            assert found.tokens_per_second is not None
            # Fifty; a machine under load may see two looks closer to each other than they were.
            assert 0 < found.tokens_per_second < 500
            samples = [each async for each in stub.Telemetry(shards_pb2.TelemetryRequest(every=0.2, count=2), **more)]
            assert len(samples) == 2
            assert samples[1].at > samples[0].at
            (gpu,) = samples[0].gpus
            assert (gpu.uuid, gpu.utilization, gpu.memory_used_bytes, gpu.power) == ("GPU-1", 73, 9 << 30, 250.0)
            assert not gpu.HasField("temperature")
            (shard,) = samples[0].shards
            assert (shard.shard, shard.model, shard.state, shard.requests) == ("m-1.0", "m", "Ready", 1)
            assert shard.gpu_bytes == {"GPU-1": 3 << 30}
            assert shard.rss_bytes > 1_000_000
            assert samples[0].memory_available_bytes > 0
            wrong = stub.Telemetry(shards_pb2.TelemetryRequest(every=0.01), **more)
            assert (await refusal(anext(aiter(wrong))))[0] is grpc.StatusCode.INVALID_ARGUMENT
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)

    asyncio.run(body())
