"""What the agent's service Engines answers, on a real agent with small engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from llmgw_base.secrets import agent_token
from llmgw_proto import engines_pb2 as pb
from llmgw_proto import keyspace
from llmgw_proto.engines_pb2_grpc import EnginesStub
from llmgw_proto.records import AliveRecord, AssignmentRecord
from llmgw_testing.agent_harness import SECRET, AgentHarness
from llmgw_testing.llama_release import make_archive, server
from llmgw_testing.llama_server import weights
from llmgw_testing.wait import eventually


@asynccontextmanager
async def line(agent: AgentHarness) -> AsyncIterator[Any]:
    """The service's calls, with the agent's token."""
    found = await eventually(lambda: agent.store.get(keyspace.alive(agent.node)), within=30, what="the node to be alive")
    assert found is not None
    async with aio.insecure_channel(AliveRecord.decode(found.value).grpc_address) as channel:
        yield EnginesStub(channel)  # type: ignore[no-untyped-call]  # generated


def token(agent: AgentHarness) -> dict[str, Any]:
    return {"metadata": (("authorization", f"Bearer {agent_token(SECRET, agent.node)}"),), "timeout": 60}


def test_installed_ahead_of_time_listed_used_built_again_and_removed(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle" / "a.tgz"
    settings = {"version": "b1", "archive": str(bundle.parent), "disk": "1MiB"}
    settings["sha256"] = make_archive(bundle, {"bin/llama-server": server("1")})

    async def body() -> None:
        async with AgentHarness(tmp_path, engines={"install": {"llamacpp": settings}}) as agent, line(agent) as calls:
            wanted = (await listed(agent, calls))["b1"]
            assert (wanted.state, wanted.default, wanted.origin) == ("wanted", True, "node")
            steps = [each async for each in calls.Install(pb.InstallEngineRequest(engine="llamacpp"), **token(agent))]
            assert [each.phase for each in steps][-1] == "installed"
            assert "unpacking" in {each.phase for each in steps}
            fractions = [each.fraction for each in steps]
            assert fractions == sorted(fractions)
            assert steps[-1].result.version == "b1"
            there = (await listed(agent, calls))["b1"]
            assert (there.state, there.default, list(there.used_by)) == ("installed", True, [])
            assert there.bytes > 0
            assert len(there.lock_sha256) == 64

            wish = AssignmentRecord.model_validate(
                {
                    "shard": "m-1.0",
                    "replica": "m-1",
                    "model": "m",
                    "epoch": 1,
                    "engine": "llamacpp",
                    "source": str(weights()),
                    "memory_bytes": 1 << 20,
                }
            )
            await agent.wish(wish)
            pid = (await agent.shard("m-1.0", "Ready")).pid
            assert list((await listed(agent, calls))["b1"].used_by) == ["m-1.0"]
            request = pb.RemoveEngineRequest(engine="llamacpp", version="b1")
            assert await refusal(calls.Remove(request, **token(agent))) == (
                grpc.StatusCode.FAILED_PRECONDITION,
                "engine llamacpp b1 is used by m-1.0",
            )
            again = pb.InstallEngineRequest(engine="llamacpp", version="b1", reinstall=True)
            steps = [each async for each in calls.Install(again, **token(agent))]
            assert "unpacking" in {each.phase for each in steps}, "it was really done again"
            assert (await agent.shard("m-1.0", "Ready")).pid == pid
            await agent.unwish("m-1.0")
            await agent.nothing_left("m-1.0", "m-1")
            removed = await calls.Remove(pb.RemoveEngineRequest(engine="llamacpp"), **token(agent))
            assert (list(removed.versions), removed.freed_bytes > 0) == (["b1"], True)
            assert (await listed(agent, calls))["b1"].state == "wanted"

    asyncio.run(body())


def test_what_cannot_be_done_is_said(tmp_path: Path) -> None:
    settings = {"version": "b1", "archive": str(tmp_path / "none.tgz"), "sha256": "0" * 64, "disk": "1MiB"}

    async def body() -> None:
        async with AgentHarness(tmp_path, engines={"install": {"llamacpp": settings}}) as agent, line(agent) as calls:

            async def install(**fields: Any) -> tuple[grpc.StatusCode, str]:
                return await refusal(drained(calls.Install(pb.InstallEngineRequest(**fields), **token(agent))))

            code, said = await install(engine="llamacpp")
            assert code is grpc.StatusCode.ABORTED
            assert "none.tgz: no such file on this node" in said
            failed = (await listed(agent, calls))["b1"]
            assert failed.state == "failed"
            assert "no such file" in failed.detail
            assert await install(engine="whisper") == (
                grpc.StatusCode.NOT_FOUND,
                "engine 'whisper': agents install vllm, sglang, llamacpp",
            )
            code, said = await install(engine="vllm")
            assert (code, "no version of vllm is set here; name one" in said) == (grpc.StatusCode.NOT_FOUND, True)
            request = pb.RemoveEngineRequest(engine="llamacpp", version="b9")
            code, said = await refusal(calls.Remove(request, **token(agent)))
            assert (code, "b9 is not installed" in said) == (grpc.StatusCode.NOT_FOUND, True)
            stranger = {"metadata": (("authorization", "Bearer x"),), "timeout": 30}
            code, _ = await refusal(calls.List(pb.ListEnginesRequest(), **stranger))
            assert code is grpc.StatusCode.UNAUTHENTICATED

    asyncio.run(body())


async def listed(agent: AgentHarness, calls: Any) -> dict[str, Any]:
    """By version, without what the host has."""
    found = await calls.List(pb.ListEnginesRequest(), **token(agent))
    return {each.version: each for each in found.engines if each.state != "host"}


async def drained(answers: Any) -> list[Any]:
    return [each async for each in answers]


async def refusal(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""
