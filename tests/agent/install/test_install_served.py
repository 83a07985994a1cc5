"""An agent that installs the engine which a wish needs, and serves from it. The engine is a wheel made on the spot."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from llmgw_proto import keyspace
from llmgw_proto.records import AssignmentRecord, InventoryRecord, ShardRecord
from llmgw_testing.agent_harness import AgentHarness
from llmgw_testing.wait import eventually
from llmgw_testing.wheels import fake_vllm


def wish(weights: Path, **fields: Any) -> AssignmentRecord:
    data: dict[str, Any] = {
        "shard": "m-1.0",
        "replica": "m-1",
        "model": "org/m",
        "epoch": 1,
        "engine": "vllm",
        "source": str(weights),
        "args": ["--max-num-seqs", "8"],
        "memory_bytes": 1 << 20,
    }
    return AssignmentRecord(**(data | fields))


def engines(wheels: Path, version: str = "1.0") -> dict[str, Any]:
    return {"install": {"vllm": {"version": version, "find_links": [str(wheels)], "offline": True, "disk": "1MiB"}}}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "weights"
    folder.mkdir()
    (folder / "config.json").write_text('{"num_attention_heads": 4}')
    (folder / "model.safetensors").write_bytes(b"0" * 64)
    return folder


async def inventory(agent: AgentHarness) -> InventoryRecord:
    found = await eventually(lambda: agent.store.get(keyspace.inventory(agent.node)), within=30, what="the inventory")
    assert found is not None
    return InventoryRecord.decode(found.value)


def test_installed_when_it_is_needed_and_served_from(tmp_path: Path, source: Path) -> None:
    fake_vllm(tmp_path / "wheels", "1.0")

    async def body() -> None:
        async with AgentHarness(tmp_path, engines=engines(tmp_path / "wheels")) as agent:
            listed = [each for each in (await inventory(agent)).engines if each.name == "vllm"]
            assert [(each.version, each.detail) for each in listed] == [("1.0", "will be installed when it is needed")]
            await agent.wish(wish(source))
            record = await agent.shard("m-1.0", "Ready")
            assert record.engine_version == "1.0"
            endpoint = await agent.endpoint("m-1")
            assert endpoint is not None
            assert endpoint.served_name == "org/m"
            assert (endpoint.max_model_len, endpoint.max_concurrency) == (64, 8)
            assert endpoint.capabilities == ["chat", "tokenize"], "what the engine does not answer is not offered"
            # A new life finds everything in place.
            await agent.crash()
            await agent.start()
            assert (await agent.shard("m-1.0", "Ready")).pid == record.pid
            listed = [each for each in (await inventory(agent)).engines if each.name == "vllm"]
            assert [each.version for each in listed] == ["1.0"]
            await agent.unwish("m-1.0")
            await agent.nothing_left("m-1.0", "m-1")

    asyncio.run(body())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": "9.9"}, "engine vllm 9.9 cannot be installed: vllm==9.9 is not where packages are looked for"),
        ({"engine": "sglang"}, "set engines.install.sglang.version in its agent's configuration"),
        ({"args": ["--por", "1"]}, "--port is reserved for engine vllm"),
        ({"gpus": ["GPU-a", "GPU-b", "GPU-c"]}, "4 attention heads cannot be split over 3 GPUs; take 2"),
        ({"source": "/no/such/folder"}, "weights /no/such/folder: no such file or folder on this node"),
    ],
)
def test_what_can_never_run_is_rejected(tmp_path: Path, source: Path, change: dict[str, Any], says: str) -> None:
    fake_vllm(tmp_path / "wheels", "1.0")

    async def body() -> ShardRecord:
        async with AgentHarness(tmp_path, engines=engines(tmp_path / "wheels")) as agent:
            await agent.wish(wish(source, **change))
            return await agent.shard("m-1.0", "Rejected")

    assert says in asyncio.run(body()).reason


def test_bad_arguments_are_told_before_anything_is_installed(tmp_path: Path, source: Path) -> None:
    fake_vllm(tmp_path / "wheels", "1.0")

    async def body() -> None:
        async with AgentHarness(tmp_path, engines=engines(tmp_path / "wheels")) as agent:
            await agent.wish(wish(source, args=["--api-key", "mine"]))
            assert "--api-key is reserved for engine vllm" in (await agent.shard("m-1.0", "Rejected")).reason
            assert not (agent.config.state_dir / "engines" / "vllm").exists()

    asyncio.run(body())


def test_progress_is_in_the_record(tmp_path: Path, source: Path) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    waits = f"import os, time\nwhile os.path.exists({str(hold)!r}):\n    time.sleep(0.02)\n"
    fake_vllm(tmp_path / "wheels", "1.0", code=waits)

    async def body() -> None:
        async with AgentHarness(tmp_path, engines=engines(tmp_path / "wheels")) as agent:
            await agent.wish(wish(source))

            async def testing() -> bool:
                record = await agent.shard("m-1.0", "Installing")
                return record.reason == "installing engine vllm 1.0, 85%, testing"

            await eventually(testing, within=30, what="the record to say that the engine is tested")
            hold.unlink()
            await agent.shard("m-1.0", "Ready")

    asyncio.run(body())


def test_a_wish_that_goes_while_its_engine_is_installed_leaves_at_once(tmp_path: Path, source: Path) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    fake_vllm(tmp_path / "wheels", "1.0", code=f"import os, time\nwhile os.path.exists({str(hold)!r}):\n    time.sleep(0.02)\n")

    async def body() -> None:
        async with AgentHarness(tmp_path, engines=engines(tmp_path / "wheels")) as agent:
            await agent.wish(wish(source))
            await agent.shard("m-1.0", "Installing")
            await agent.unwish("m-1.0")
            await agent.nothing_left("m-1.0", "m-1")

    asyncio.run(body())
