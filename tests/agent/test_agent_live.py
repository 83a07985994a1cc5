"""The hardware in a running agent: published when it changes, and never a reason for the agent to end."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest

from llmgw_agent import live
from llmgw_agent.hardware.hardware import Hardware
from llmgw_agent.live import is_ours
from llmgw_agent.process.identity import Owner
from llmgw_agent.shard.context import Context
from llmgw_proto import keyspace
from llmgw_proto.records import InventoryRecord
from llmgw_testing import hardware_look
from llmgw_testing import nvml_profiles as machine
from llmgw_testing.agent_harness import WITHIN, AgentHarness, fake_wish
from llmgw_testing.nvml_fake import FakeNvml
from llmgw_testing.quiet_watch import QuietWatch
from llmgw_testing.wait import eventually


async def inventory(agent: AgentHarness) -> InventoryRecord | None:
    found = await agent.store.get(keyspace.inventory(agent.node))
    return None if found is None else InventoryRecord.decode(found.value)


def test_a_quarantine_is_published_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeNvml(monkeypatch, tmp_path, machine.l40s(2))
    found = hardware_look.look(None)
    watches: list[QuietWatch] = []

    class Watch(QuietWatch):
        async def look(self) -> Hardware:
            self._found = found
            self._tell()
            watches.append(self)
            return found

    async def body() -> None:
        agent = AgentHarness(tmp_path)
        agent.watch = Watch
        async with agent:

            async def set_aside() -> list[bool] | None:
                record = await inventory(agent)
                return None if record is None else [gpu.quarantine is not None for gpu in record.gpus]

            async def both_fine() -> bool:
                return await set_aside() == [False, False]

            async def one_aside() -> bool:
                return await set_aside() == [True, False]

            await eventually(both_fine, within=WITHIN, what="two GPUs")
            watches[0].telemetry.hold(machine.uuid(0), "for a test")
            # Far less than the minute in which an inventory is read anew.
            await eventually(one_aside, within=WITHIN, what="the quarantine")
            record = await inventory(agent)
            assert record is not None
            assert any("for a test" in problem for problem in record.problems)

    asyncio.run(body())


def test_a_watch_that_fails_or_never_looks_leaves_the_agent_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(live, "FIRST_LOOK", 0.2)
    monkeypatch.setattr(live, "AGAIN_AFTER", 0.2)
    runs: list[str] = []

    class Watch(QuietWatch):
        async def run(self) -> None:
            runs.append("run")
            if len(runs) == 1:
                await asyncio.sleep(0.5)
            raise OSError("no such thing")

    async def body() -> None:
        agent = AgentHarness(tmp_path)
        agent.watch = Watch
        async with agent:
            await agent.wish(fake_wish("m"))
            await agent.shard("m-1.0", "Ready")
            await eventually(lambda: len(runs) > 2, within=WITHIN, what="the watch to begin anew")
            record = await inventory(agent)
            assert record is not None
            assert record.gpus == []
        assert "the first look at the hardware takes long" in caplog.text
        assert "fault in the watch over the hardware" in caplog.text

    asyncio.run(body())


class FakeContext:
    """As much of a context as whose process it is depends on."""

    node = "n1"
    owner = Owner("c", "n1")

    class publisher:  # noqa: N801 - stands for an attribute
        @staticmethod
        def values(prefix: str) -> list[bytes]:
            return []


def test_processes_of_engines_are_told_from_those_of_others() -> None:
    context = cast(Context, cast(Any, FakeContext()))
    environment = {**os.environ, "LLMGW_NODE": "n1"}
    stranger = {**os.environ, "LLMGW_NODE": "n2"}

    def start(env: dict[str, str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["sleep", "60"], env=env, start_new_session=True)

    assert is_ours(os.getpid(), context)
    assert not is_ours(1, context)
    assert not is_ours(2**22 + 1, context), "a number that nobody has"
    # Of the agent itself: a child; its environment says nothing of it.
    child = start(stranger)
    # Of an engine whose agent was started anew: only its mark tells.
    grandchild = subprocess.run(
        ["sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!"], env=environment, capture_output=True, text=True, check=True
    )
    pid = int(grandchild.stdout)
    try:
        assert is_ours(child.pid, context)
        assert is_ours(pid, context)
    finally:
        os.kill(pid, 9)
        child.kill()
        child.wait()
