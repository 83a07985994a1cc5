"""The agent's store of weights: where it is, and what keeps it from opening."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from llmgw_agent.config import AgentConfig
from llmgw_agent.shard.fetch import fetch
from llmgw_agent.stored_weights import SWEEP_EVERY, keep_tidy, open_weights, weights_folder
from llmgw_base.config import ConfigError
from llmgw_testing.agent_harness import AgentHarness, fake_wish
from llmgw_testing.clock import FakeClock
from llmgw_testing.file_server import FileServer
from llmgw_testing.weights import MIB, data


def config(root: Path, **weights: object) -> AgentConfig:
    return AgentConfig.model_validate({"state_dir": str(root / "agent"), "weights": weights})


def test_it_lies_in_the_state_folder_unless_told_otherwise(tmp_path: Path) -> None:
    assert weights_folder(config(tmp_path)) == tmp_path / "agent/weights"
    assert weights_folder(config(tmp_path, dir=str(tmp_path / "big"))) == tmp_path / "big"


def test_what_keeps_it_from_opening_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for bad in ({"dir": str(tmp_path / "file/x")}, {"dir": str(tmp_path / "w"), "ca_file": str(tmp_path / "none.pem")}):
        with pytest.raises(ConfigError, match="cannot be used"):
            open_weights(config(tmp_path, **bad), FakeClock())


def test_it_is_tidied_up_now_and_then(tmp_path: Path) -> None:
    async def body() -> None:
        clock = FakeClock()
        async with open_weights(config(tmp_path), clock) as store:
            swept = asyncio.Event()
            real = store.sweep

            async def sweep() -> int:
                count = await real()
                swept.set()
                return count

            store.sweep = sweep  # type: ignore[method-assign]  # only to see that it is called
            task = asyncio.create_task(keep_tidy(store, clock))
            async with asyncio.timeout(20):
                for _ in range(2):
                    await swept.wait()
                    swept.clear()
                    await clock.advance(SWEEP_EVERY)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(body())


def test_signed_links_do_not_reach_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        settings = {"allow_networks": ["127.0.0.0/8"], "reserve_bytes": 0}
        async with FileServer() as files, AgentHarness(tmp_path, weights=settings) as agent:
            files.put("/w.bin", data(MIB))
            await agent.wish(fake_wish(source=files.url("/w.bin?signature=s3cr3t")))
            await agent.shard("m-1.0", "Ready")

    with caplog.at_level(logging.DEBUG, logger=fetch.__module__):
        asyncio.run(body())
    told = [record for record in caplog.records if record.getMessage() == "weights fetched"]
    assert told
    assert "s3cr3t" not in str([vars(each) for each in told])
