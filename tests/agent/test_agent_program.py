"""The agent as a program of its own, with a real etcd: killed at every step, stopped, configured wrongly."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from llmgw_agent.process.identity import read_stat
from llmgw_base.secrets import engine_key
from llmgw_proto import keyspace
from llmgw_proto.records import AssignmentRecord, ShardRecord
from llmgw_testing.agent_harness import SECRET, WITHIN, fake_wish
from llmgw_testing.agent_program import STEPS, program
from llmgw_testing.etcd_server import EtcdServer
from llmgw_testing.llama_server import weights
from llmgw_testing.wait import eventually

#: A binary in the driver's eyes.
BINARY = """#!/bin/sh
[ "$1" = --version ] && echo "version: 4321 (test)" && exit
exec {python} -m llmgw_agent.engines.xllamacpp_server "$@"
"""


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdServer]:
    with EtcdServer("3.5") as server:
        yield server


def command_line(pid: int | None) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


@pytest.mark.parametrize("step", STEPS)
def test_killed_at_any_step_of_a_start_there_is_exactly_one_engine_afterwards(
    tmp_path: Path, etcd: EtcdServer, step: str
) -> None:
    async def body() -> None:
        async with program(tmp_path, etcd) as agent:
            await agent.wish(fake_wish())
            killed = await agent.start(failpoint=step)
            async with asyncio.timeout(WITHIN):
                assert await killed.wait() == -signal.SIGKILL
            if step in ("spawned", "process-saved"):
                # On a busy machine the kernel takes its time between starting a program and showing its environment.
                await eventually(lambda: len(agent.engines()) == 1, within=WITHIN, what="the engine to show its marks")
            left = agent.engines()
            assert len(left) == (1 if step in ("spawned", "process-saved") else 0)
            began = time.monotonic()
            await agent.start()
            record, _ = await agent.ready("m-1.0")
            assert time.monotonic() - began < WITHIN
            assert agent.engines() == [record.pid]
            if left:
                assert [record.pid] == left, "the engine that was started before is adopted, not doubled"
            assert record.restarts == 0

    asyncio.run(body())


def test_killed_while_it_streams_the_stream_goes_on_and_the_engine_is_adopted(tmp_path: Path, etcd: EtcdServer) -> None:
    async def body() -> None:
        async with program(tmp_path, etcd) as agent, aiohttp.ClientSession() as session:
            await agent.wish(fake_wish("m", "--tokens", "12", script="slow"))
            await agent.start()
            before, endpoint = await agent.ready("m-1.0")
            headers = {"Authorization": f"Bearer {engine_key(SECRET, 'm-1', 1)}"}
            request = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True}
            async with session.post(endpoint.url + "/v1/chat/completions", json=request, headers=headers) as answer:
                await answer.content.readany()
                await agent.end(signal.SIGKILL)
                await agent.start()
                data = await answer.content.read()
            assert data.rstrip().endswith(b"[DONE]")

            async def adopted() -> bool:
                record, _ = await agent.ready("m-1.0")
                return record.updated_at > before.updated_at and record.pid == before.pid

            await eventually(adopted, within=5, what="adoption")
            assert agent.engines() == [before.pid]
            stat = read_stat(agent.engines()[0])
            assert agent.process is not None
            assert stat is not None
            assert stat.parent != agent.process.pid, "it is adopted, not a child"
            os.kill(agent.engines()[0], signal.SIGKILL)

            async def replaced() -> bool:
                record, _ = await agent.ready("m-1.0")
                return record.restarts == 1 and [record.pid] == agent.engines()

            await eventually(replaced, within=WITHIN, what="another engine")

    asyncio.run(body())


def test_sigterm_ends_it_within_seconds_and_keeps_or_stops_engines(tmp_path: Path, etcd: EtcdServer) -> None:
    async def body(on_stop: str) -> tuple[int, int, bool]:
        root = tmp_path / on_stop
        root.mkdir()
        async with program(root, etcd, on_stop=on_stop) as agent:
            await agent.wish(fake_wish())
            await agent.start()
            await agent.ready("m-1.0")
            await eventually(lambda: agent.store.get(keyspace.alive(agent.node)), within=WITHIN, what="alive")
            began = time.monotonic()
            status = await agent.end(signal.SIGTERM)
            assert time.monotonic() - began < 10
            alive = await agent.store.get(keyspace.alive(agent.node)) is not None
            return status, len(agent.engines()), alive

    assert asyncio.run(body("keep")) == (0, 1, True)
    assert asyncio.run(body("stop")) == (0, 0, False)


def test_a_real_llama_cpp_serves_chat_and_embeddings_behind_its_key(tmp_path: Path, etcd: EtcdServer) -> None:
    async def body() -> None:
        async with program(tmp_path, etcd) as agent, aiohttp.ClientSession() as session:
            wish = AssignmentRecord(
                shard="smol-1.0",
                replica="smol-1",
                model="org/smol",
                epoch=1,
                engine="llamacpp",
                source=f"file://{weights()}",
                args=["-c", "2048", "-np", "2", "-t", "1", "--embeddings", "--pooling", "mean"],
            )
            await agent.wish(wish)
            await agent.start()
            record, endpoint = await agent.ready("smol-1.0")
            assert endpoint.served_name == "org/smol"
            assert endpoint.capabilities == ["chat", "completions", "embeddings"]
            assert endpoint.max_concurrency == 2
            assert endpoint.max_model_len == 1024
            assert record.engine_version
            assert record.peak_rss_bytes < record.memory_bytes, "the memory set aside was enough"
            key = engine_key(SECRET, "smol-1", 1)
            assert key not in command_line(record.pid), "others on the host must not see the key"

            async def post(path: str, given: str, **body: Any) -> tuple[int, Any]:
                headers = {"Authorization": f"Bearer {given}"}
                async with session.post(endpoint.url + path, json={"model": "org/smol", **body}, headers=headers) as answer:
                    return answer.status, await answer.json()

            question = {"messages": [{"role": "user", "content": "Say hi."}], "max_tokens": 4}
            status, answer = await post("/v1/chat/completions", key, **question)
            assert status == 200
            assert answer["usage"]["completion_tokens"] >= 1
            assert (await post("/v1/embeddings", key, input="hi"))[0] == 200
            assert (await post("/v1/chat/completions", "wrong", **question))[0] == 401

            await agent.store.delete(keyspace.assignment(agent.node, "smol-1.0"))

            async def gone() -> bool:
                return not agent.engines() and await agent.store.get(keyspace.shard(agent.node, "smol-1.0")) is None

            await eventually(gone, within=WITHIN, what="nothing to be left")

    asyncio.run(body())


def test_damaged_weights_are_rejected_with_llama_cpps_own_reason(tmp_path: Path, etcd: EtcdServer) -> None:
    async def body() -> None:
        binary = tmp_path / "llama-server"
        binary.write_text(BINARY.format(python=sys.executable))
        binary.chmod(0o755)
        async with program(tmp_path, etcd, llama_server=str(binary)) as agent:
            broken = tmp_path / "broken.gguf"
            broken.write_bytes(weights().read_bytes()[:3_000_000])
            source = str(broken)
            await agent.wish(
                AssignmentRecord(shard="b-1.0", replica="b-1", model="b", epoch=1, engine="llamacpp", source=source)
            )
            await agent.start()

            async def rejected() -> ShardRecord | None:
                found = await agent.store.get(keyspace.shard(agent.node, "b-1.0"))
                record = ShardRecord.decode(found.value) if found is not None else None
                return record if record is not None and record.state == "Rejected" else None

            record = await eventually(rejected, within=WITHIN, what="the rejection")
            assert record is not None
            assert record.engine_version == "4321"
            assert record.reason == (
                "the engine exited with 1: the weights could not be loaded. The file is damaged or of a kind that this "
                "llama.cpp cannot load: copy it again or use a newer llama.cpp."
            )

    asyncio.run(body())
