"""What an agent finds out before it starts vLLM: from the engine's own parser, and from the sizes of weights and GPUs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from llmgw_agent.hardware.hardware import Hardware
from llmgw_proto import keyspace
from llmgw_proto.records import AssignmentRecord, InventoryRecord
from llmgw_testing import hardware_look
from llmgw_testing import nvml_profiles as machine
from llmgw_testing.agent_harness import WITHIN, AgentHarness
from llmgw_testing.nvml_fake import FakeNvml
from llmgw_testing.quiet_watch import QuietWatch
from llmgw_testing.wait import eventually
from llmgw_testing.wheels import fake_vllm

GIB = 1 << 30


def wish(weights: Path, **fields: Any) -> AssignmentRecord:
    data: dict[str, Any] = {"shard": "m-1.0", "replica": "m-1", "model": "org/m", "epoch": 1, "engine": "vllm"}
    return AssignmentRecord(**(data | {"source": str(weights), "memory_bytes": 1 << 20} | fields))


@pytest.fixture
def engines(tmp_path: Path) -> dict[str, Any]:
    wheels = tmp_path / "wheels"
    fake_vllm(wheels, "1.0")
    return {"install": {"vllm": {"version": "1.0", "find_links": [str(wheels)], "offline": True, "disk": "1MiB"}}}


def folder(root: Path, size: int) -> Path:
    """Weights of that size which take no room on the disk."""
    root.mkdir()
    (root / "config.json").write_text('{"num_attention_heads": 8, "num_hidden_layers": 4}')
    with (root / "model.safetensors").open("wb") as file:
        file.truncate(size)
    return root


def test_the_installed_parser_is_asked_before_weights_are_looked_at(tmp_path: Path, engines: dict[str, Any]) -> None:
    async def body() -> None:
        async with AgentHarness(tmp_path, engines=engines) as agent:
            await agent.wish(wish(tmp_path / "no-such-weights", args=["--max-num-seqs", "8", "--bogus", "1"]))
            record = await agent.shard("m-1.0", "Rejected")
            assert record.reason.startswith("args: vLLM 1.0 does not take them (unrecognized arguments: --bogus 1); correct")
            assert record.pid is None

    asyncio.run(body())


def test_weights_that_this_nodes_gpus_cannot_hold_are_refused(
    tmp_path: Path, engines: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeNvml(monkeypatch, tmp_path, machine.l40s(2))
    found = hardware_look.look(None)

    class Watch(QuietWatch):
        async def look(self) -> Hardware:
            self._found = found
            self._tell()
            return found

    async def body() -> None:
        agent = AgentHarness(tmp_path, engines=engines)
        agent.watch = Watch
        async with agent:

            async def gpus() -> list[str]:
                record = await agent.store.get(keyspace.inventory(agent.node))
                return [] if record is None else [gpu.uuid for gpu in InventoryRecord.decode(record.value).gpus]

            first, second = await eventually(gpus, within=WITHIN, what="two GPUs")
            await agent.wish(wish(folder(tmp_path / "weights", 70 * GIB), gpus=[first]))
            record = await agent.shard("m-1.0", "Rejected")
            assert "each of the model's GPUs has to hold about 70.0 GiB of weights" in record.reason
            assert "use more or larger GPUs" in record.reason
            await agent.wish(wish(tmp_path / "weights", gpus=[first, second], epoch=2))
            assert (await agent.shard("m-1.0", "Ready")).epoch == 2
            await agent.unwish("m-1.0")
            await agent.nothing_left("m-1.0", "m-1")

    asyncio.run(body())
