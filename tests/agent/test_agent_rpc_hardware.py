"""The agent's calls about hardware, between real agents that find made-up hardware."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from llmgw_agent.hardware.hardware import Hardware
from llmgw_agent.hardware.watch import HardwareWatch
from llmgw_agent.rpc import desk
from llmgw_base.secrets import agent_token
from llmgw_proto import agent_pb2, agent_pb2_grpc, keyspace
from llmgw_proto.records import AliveRecord
from llmgw_testing import hardware_look
from llmgw_testing import nvml_profiles as machine
from llmgw_testing.agent_harness import SECRET, WITHIN, AgentHarness, fake_wish
from llmgw_testing.nvml_fake import FakeNvml
from llmgw_testing.quiet_watch import QuietWatch
from llmgw_testing.sysfs_trees import SysfsTree
from llmgw_testing.wait import eventually

FIXTURES = Path(__file__).parents[1] / "fixtures" / "hardware" / "perftest"


def watch_of(found: Hardware) -> type[HardwareWatch]:
    class Watch(QuietWatch):
        async def look(self) -> Hardware:
            self._found = found
            self._tell()
            return found

    return Watch


@asynccontextmanager
async def calls(agent: AgentHarness, token: str | None = None) -> AsyncIterator[tuple[Any, dict[str, Any]]]:
    """The agent's stub, and what goes with each call."""

    async def address() -> str | None:
        found = await agent.store.get(keyspace.alive(agent.node))
        return None if found is None else AliveRecord.decode(found.value).grpc_address

    listens = await eventually(address, within=WITHIN, what=f"{agent.node} to be alive")
    assert listens is not None
    bearer = token or agent_token(SECRET, agent.node)
    async with aio.insecure_channel(listens) as channel:
        stub = agent_pb2_grpc.AgentStub(channel)  # type: ignore[no-untyped-call]  # generated
        yield stub, {"metadata": (("authorization", f"Bearer {bearer}"),), "timeout": 60}


async def refusal(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(aio.AioRpcError) as caught:
        await call
    return caught.value.code(), str(caught.value.details())


def test_only_the_token_opens(tmp_path: Path) -> None:
    async def body() -> None:
        async with AgentHarness(tmp_path) as agent, calls(agent, "wrong") as (stub, more):
            for call in (
                stub.Hold(agent_pb2.HoldRequest(subject="x"), **more),
                stub.Lift(agent_pb2.LiftRequest(subject="x"), **more),
                stub.SetPower(agent_pb2.SetPowerRequest(gpu="x"), **more),
                stub.Bandwidth(agent_pb2.BandwidthRequest(peer="x"), **more),
                anext(aiter(stub.ServeBandwidth(agent_pb2.ServeBandwidthRequest(seconds=1), **more))),
            ):
                assert (await refusal(call))[0] is grpc.StatusCode.UNAUTHENTICATED

    asyncio.run(body())


def test_a_mig_instance_stands_for_its_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk, "_ONE_SAMPLE", 0.0)
    FakeNvml(monkeypatch, tmp_path, machine.h100_mig())
    found = hardware_look.look(None)
    (gpu, *_) = [each for each in found.topology()["gpus"] if each["mig"]]
    part = gpu["mig"]["instances"][0]["uuid"]

    async def body() -> None:
        agent = AgentHarness(tmp_path)
        agent.watch = watch_of(found)
        async with agent, calls(agent) as (stub, more):
            held = await stub.Hold(agent_pb2.HoldRequest(subject=part, reason="loud"), **more)
            assert held.subject == gpu["uuid"]
            assert held.quarantine.startswith("operator: loud")
            lifted = await stub.Lift(agent_pb2.LiftRequest(subject=gpu["uuid"]), **more)
            assert (lifted.subject, lifted.quarantine) == (gpu["uuid"], "")
            code, details = await refusal(stub.Lift(agent_pb2.LiftRequest(subject="GPU-none"), **more))
            assert code is grpc.StatusCode.NOT_FOUND
            assert "has no GPU or port 'GPU-none'" in details
            code, _ = await refusal(stub.SetPower(agent_pb2.SetPowerRequest(gpu=gpu["uuid"], watts=5), **more))
            assert code is grpc.StatusCode.INVALID_ARGUMENT
            code, _ = await refusal(stub.SetPower(agent_pb2.SetPowerRequest(gpu=gpu["uuid"], watts=float("nan")), **more))
            assert code is grpc.StatusCode.INVALID_ARGUMENT

    asyncio.run(body())


def rdma_host(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Hardware:
    """One GPU with an adapter beside it."""
    tree = SysfsTree(folder / "sys")
    tree.hca("mlx5_0", "pci0000:15/0000:15:01.0/0000:1a:00.0")
    FakeNvml(monkeypatch, folder, machine.l40s(1))
    return hardware_look.look(tree.root)


@asynccontextmanager
async def two_agents(tmp_path: Path, found: Hardware) -> AsyncIterator[tuple[AgentHarness, AgentHarness]]:
    one = AgentHarness(tmp_path / "one")
    two = AgentHarness(tmp_path / "two", server=one.store.server)
    one.watch = two.watch = watch_of(found)
    async with one, two, calls(two):
        yield one, two


def test_over_rdma_where_both_have_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = rdma_host(monkeypatch, tmp_path)
    program = tmp_path / "bin" / "ib_write_bw"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\n"
        f'echo "$@" >> "{tmp_path}/calls"\n'
        'case "$*" in *127.0.0.1) exec /bin/cat "' + str(FIXTURES / "ib_write_bw.client.txt") + '";; esac\n'
        "echo '* Waiting for client to connect... *'\nexec /bin/sleep 600\n"
    )
    program.chmod(0o755)

    async def body() -> None:
        async with two_agents(tmp_path, found) as (one, two), calls(one) as (stub, more):
            monkeypatch.setenv("PATH", str(program.parent))
            result = await stub.Bandwidth(agent_pb2.BandwidthRequest(peer=two.node, seconds=1), **more)
            assert (result.method, result.port, result.peer_port) == ("rdma", "mlx5_0:1", "mlx5_0:1")
            assert result.gigabits_per_second == 0.37

            server, client = (tmp_path / "calls").read_text().splitlines()
            assert client == f"{server} 127.0.0.1"

            async def ended() -> bool:
                # The other end is free for the next test only when its server is gone.
                await stub.Bandwidth(agent_pb2.BandwidthRequest(peer=two.node, seconds=1), **more)
                return True

            await eventually(ended, within=WITHIN, what="the other end to be free")

    asyncio.run(body())


def test_over_tcp_without_the_program_and_never_beside_a_replica(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = rdma_host(monkeypatch, tmp_path)
    monkeypatch.setattr("llmgw_agent.hardware.bandwidth.perftest.PROGRAM", "no-such-program")

    async def body() -> None:
        async with two_agents(tmp_path, found) as (one, two), calls(one) as (stub, more):
            wish = agent_pb2.BandwidthRequest(peer=two.node, seconds=0.2)
            result = await stub.Bandwidth(wish, **more)
            assert result.method == "tcp"
            assert "no-such-program is not installed" in result.note
            assert result.bytes > 0

            for request, code in (
                (agent_pb2.BandwidthRequest(peer=one.node), grpc.StatusCode.INVALID_ARGUMENT),
                (agent_pb2.BandwidthRequest(peer=two.node, seconds=61), grpc.StatusCode.INVALID_ARGUMENT),
                (agent_pb2.BandwidthRequest(peer=two.node, seconds=float("inf")), grpc.StatusCode.INVALID_ARGUMENT),
                (agent_pb2.BandwidthRequest(peer="nobody"), grpc.StatusCode.ABORTED),
            ):
                assert (await refusal(stub.Bandwidth(request, **more)))[0] is code

            await two.wish(fake_wish("m"))
            await two.shard("m-1.0", "Ready")
            code, details = await refusal(stub.Bandwidth(wish, **more))
            assert code is grpc.StatusCode.FAILED_PRECONDITION
            assert f"node {two.node}: m-1.0 is Ready" in details
            forced = agent_pb2.BandwidthRequest(peer=two.node, seconds=0.2, force=True)
            assert (await stub.Bandwidth(forced, **more)).bytes > 0

    asyncio.run(body())
