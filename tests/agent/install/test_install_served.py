"""An agent that installs the engine which a wish needs, and serves from it. The engine is a wheel made on the spot."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import psutil
import pytest

from llmgw_proto import keyspace
from llmgw_proto.records import AssignmentRecord, InventoryRecord, ShardRecord
from llmgw_testing.agent_harness import AgentHarness
from llmgw_testing.llama_release import make_archive, server
from llmgw_testing.llama_server import weights
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


def test_llamacpp_from_an_archive_serves_in_the_version_that_is_wished(tmp_path: Path) -> None:
    bundles, gguf = tmp_path / "bundles", weights()
    digests = {name: make_archive(bundles / f"{name}.tgz", {"bin/llama-server": server(name[1:])}) for name in ("b1", "b2")}
    install = {
        "version": "b1",
        "archive": str(bundles),
        "sha256": digests["b1"],
        "version_overrides": [
            {"labels": {"ring": "canary"}, "version": "b2", "archive": str(bundles), "sha256": digests["b2"]},
        ],
        "disk": "1MiB",
    }

    async def body() -> None:
        async with AgentHarness(tmp_path, engines={"install": {"llamacpp": install}}) as agent:
            listed = [each for each in (await inventory(agent)).engines if each.name == "llamacpp"]
            assert ("b1", "will be installed when it is needed") in [(each.version, each.detail) for each in listed]
            assert [each.version for each in listed if each.default] == ["b1"], "also where the host has another one"
            llama = {"engine": "llamacpp", "source": str(gguf), "args": []}
            await agent.wish(wish(gguf, **llama))
            record = await agent.shard("m-1.0", "Ready")
            assert record.engine_version == "b1"
            assert record.pid is not None
            home = agent.config.state_dir / "engines" / "llamacpp"
            assert psutil.Process(record.pid).environ()["VIRTUAL_ENV"].startswith(str(home / "b1-"))
            other = {"shard": "o-1.0", "replica": "o-1", "model": "o", "version": "b2"}
            await agent.wish(wish(gguf, **llama | other))
            assert (await agent.shard("o-1.0", "Ready")).engine_version == "b2"
            await agent.wish(wish(gguf, **llama | {"shard": "p-1.0", "replica": "p-1", "model": "p", "version": "b3"}))
            assert "name one for b3 with its sha256" in (await agent.shard("p-1.0", "Rejected")).reason
            now = await eventually(lambda: _installed(agent), within=30, what="both versions in the inventory")
            assert now == {"b1", "b2"}
            for each in ("m", "o", "p"):
                await agent.unwish(f"{each}-1.0")
            for each in ("m", "o", "p"):
                await agent.nothing_left(f"{each}-1.0", f"{each}-1")

    asyncio.run(body())


async def _installed(agent: AgentHarness) -> set[str] | None:
    """Versions of llama.cpp in environments, once there are two."""
    engines = (await inventory(agent)).engines
    found = {each.version for each in engines if each.name == "llamacpp" and each.detail.startswith("environment ")}
    return found if len(found) == 2 else None


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
