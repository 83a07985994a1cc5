"""The service Weights of a running agent."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from llmgw_base.secrets import agent_token
from llmgw_proto import keyspace
from llmgw_proto import weights_pb2 as pb
from llmgw_proto.records import AliveRecord
from llmgw_proto.weights_pb2_grpc import WeightsStub
from llmgw_testing.agent_harness import SECRET, AgentHarness, fake_wish
from llmgw_testing.file_server import FileServer
from llmgw_testing.wait import eventually
from llmgw_testing.weights import MIB, data, gguf, sha256

SETTINGS = {"allow_networks": ["127.0.0.0/8"], "reserve_bytes": 0}
MODEL = gguf({"general.architecture": "llama", "llama.block_count": 3, "llama.context_length": 77}, padding=MIB)


class Desk:
    """Calls the agent's service as a coordinator does."""

    def __init__(self, channel: aio.Channel, token: str) -> None:
        self.stub: Any = WeightsStub(channel)  # type: ignore[no-untyped-call]  # generated
        self.metadata = (("authorization", f"Bearer {token}"),)

    async def stored(self) -> list[Any]:
        found = await self.stub.List(pb.ListWeightsRequest(), metadata=self.metadata, timeout=60)
        return list(found.weights)

    async def remove(self, name: str) -> Any:
        return await self.stub.Remove(pb.RemoveWeightsRequest(name=name), metadata=self.metadata, timeout=60)

    async def verify(self, name: str = "") -> list[Any]:
        return [each async for each in self.stub.Verify(pb.VerifyWeightsRequest(name=name), metadata=self.metadata, timeout=60)]

    def fetch(self, source: str) -> Any:
        return self.stub.Fetch(pb.FetchWeightsRequest(source=source), metadata=self.metadata, timeout=60)


@asynccontextmanager
async def desk(agent: AgentHarness) -> AsyncIterator[Desk]:
    alive = await eventually(lambda: agent.store.get(keyspace.alive(agent.node)), within=30, what="the agent to be there")
    assert alive is not None
    async with aio.insecure_channel(AliveRecord.decode(alive.value).grpc_address) as channel:
        yield Desk(channel, agent_token(SECRET, agent.node))


async def refusal(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


async def read(call: Any) -> list[Any]:
    return [each async for each in call]


def test_fetched_ahead_listed_verified_removed(tmp_path: Path) -> None:
    async def run() -> None:
        async with FileServer() as files, AgentHarness(tmp_path, weights=SETTINGS) as agent, desk(agent) as weights:
            files.put("/m.gguf", MODEL, bytes_per_second=MIB)
            source = f"{files.url('/m.gguf')}?signature=s3cr3t#sha256={sha256(MODEL)}"
            assert await weights.stored() == []
            steps = await read(weights.fetch(source))
            assert any(each.phase == "fetching" and 0 <= each.bytes_done <= len(MODEL) for each in steps)
            assert (steps[-1].phase, steps[-1].bytes_done, steps[-1].facts.layers) == ("ready", len(MODEL), 3)
            (found,) = await weights.stored()
            assert (found.bytes, found.files, found.facts.context_length) == (len(MODEL), 1, 77)
            assert "s3cr3t" not in str(found)
            assert not found.used_by

            assert (await weights.verify())[-1].result.files == 1
            assert found.path.endswith("/m.gguf")
            blob = agent.config.state_dir / "weights/blobs/sha256" / sha256(MODEL)
            blob.chmod(0o644)
            before = blob.stat()
            blob.write_bytes(bytes(len(MODEL)))
            os.utime(blob, ns=(before.st_atime_ns, before.st_mtime_ns))  # a disk that loses data says nothing of it
            done = (await weights.verify(found.content[:8]))[-1]
            assert list(done.result.wrong) == [f"{found.source}: m.gguf"]
            assert (await read(weights.fetch(source)))[-1].phase == "ready"
            assert len(files.gets("/m.gguf")) == 2
            removed = await weights.remove(found.key)
            assert (list(removed.sources), removed.freed_bytes) == ([found.source], len(MODEL))
            assert await weights.stored() == []

    asyncio.run(run())


def test_what_runs_is_not_removed_and_what_has_failed_is(tmp_path: Path) -> None:
    async def run() -> None:
        async with FileServer() as files, AgentHarness(tmp_path, weights=SETTINGS) as agent, desk(agent) as weights:
            files.put("/m.bin", data(MIB))
            await agent.wish(fake_wish(source=files.url("/m.bin")))
            await agent.shard("m-1.0", "Ready")
            (found,) = await weights.stored()
            assert list(found.used_by) == ["m-1.0"]
            code, said = await refusal(weights.remove(files.url("/m.bin")))
            assert code is grpc.StatusCode.FAILED_PRECONDITION
            assert "in use by m-1.0" in said
            await agent.unwish("m-1.0")
            await agent.nothing_left("m-1.0", "m-1")
            broken = fake_wish("b", command=["/does/not/exist"], source=files.url("/m.bin"))
            await agent.wish(broken)

            async def ended() -> bool:
                record = await agent.record("b-1.0")
                return record is not None and record.state in ("Failed", "Rejected")

            await eventually(ended, within=30, what="the shard to fail")
            assert (await weights.remove(files.url("/m.bin"))).freed_bytes == MIB

    asyncio.run(run())


def test_refusals_say_what_is_wrong(tmp_path: Path) -> None:
    async def run() -> None:
        async with FileServer() as files, AgentHarness(tmp_path, weights={"reserve_bytes": 0}) as agent, desk(agent) as weights:
            assert await refusal(weights.remove("nothing")) == (
                grpc.StatusCode.NOT_FOUND,
                "no weights 'nothing' are stored here; `llmgwctl weights list` shows what is",
            )
            assert (await refusal(read(weights.fetch("ftp://x"))))[0] is grpc.StatusCode.INVALID_ARGUMENT
            code, said = await refusal(read(weights.fetch(files.url("/m.bin"))))
            assert code is grpc.StatusCode.ABORTED
            assert "loopback" in said
            assert "weights.allow_networks" in said
            weights.metadata = (("authorization", "Bearer no"),)
            for call in (weights.stored(), weights.remove("x"), weights.verify(), read(weights.fetch("hf:a/b"))):
                assert (await refusal(call))[0] is grpc.StatusCode.UNAUTHENTICATED

    asyncio.run(run())


def test_whoever_leaves_a_fetch_ends_it_and_the_next_one_goes_on(tmp_path: Path) -> None:
    async def run() -> None:
        async with FileServer() as files, AgentHarness(tmp_path, weights=SETTINGS) as agent, desk(agent) as weights:
            served = files.put("/m.bin", data(4 * MIB), bytes_per_second=MIB)
            source = f"{files.url('/m.bin')}#sha256={sha256(data(4 * MIB))}"
            call = weights.fetch(source)
            async for step in call:
                if step.bytes_done > MIB // 2:
                    break
            call.cancel()
            locks = agent.config.state_dir / "weights/wanted"
            await eventually(lambda: list(locks.iterdir()) != [], within=30, what="what is wanted")
            served.bytes_per_second = None
            assert (await read(weights.fetch(source)))[-1].phase == "ready"
            assert files.gets("/m.bin")[-1].range is not None

    asyncio.run(run())
