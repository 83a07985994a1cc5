"""What Prometheus reads from an agent, and what happens when its port cannot be had."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path

import aiohttp
import pytest

from llmgw_agent import metrics_server
from llmgw_agent.config import AgentConfig
from llmgw_base.clock import SystemClock
from llmgw_base.config import ConfigError, TlsSection, load
from llmgw_base.metrics import new_registry
from llmgw_base.net import Listen
from llmgw_testing.agent_harness import WITHIN, AgentHarness, fake_wish
from llmgw_testing.etcd_tls import TestAuthority
from llmgw_testing.stack import free_port
from llmgw_testing.wait import eventually


async def page(url: str, tls: ssl.SSLContext | bool = True) -> str:
    async with aiohttp.ClientSession() as session, session.get(url, ssl=tls) as answer:
        assert answer.status == 200
        return await answer.text()


def test_shards_restarts_and_the_store_are_told(tmp_path: Path) -> None:
    async def body() -> None:
        port = free_port()
        async with AgentHarness(tmp_path, metrics={"listen": f"127.0.0.1:{port}"}) as agent:
            await agent.wish(fake_wish("m"))
            await agent.shard("m-1.0", "Ready")
            text = await page(f"http://127.0.0.1:{port}/metrics")
            assert 'llmgw_agent_shards{state="Ready"} 1.0' in text
            assert 'llmgw_agent_shard_restarts_total{model="m",shard="m-1.0"} 0.0' in text
            assert "llmgw_agent_store_connected 1.0" in text
            assert "llmgw_hardware_problems" in text
            assert 'llmgw_agent_weights_fetched_bytes_total{place="peer"} 0.0' in text
            assert "llmgw_agent_weights_given_bytes_total 0.0" in text

            agent.life.down("gone")
            await agent.wish(fake_wish("n"))

            async def away() -> bool:
                return "llmgw_agent_store_connected 0.0" in await page(f"http://127.0.0.1:{port}/metrics")

            await eventually(away, within=WITHIN, what="the agent to say that etcd is away")

    asyncio.run(body())


async def served(listen: Listen, tls: TlsSection | None, monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Task[None], str]:
    monkeypatch.setattr(metrics_server, "AGAIN_AFTER", 0.05)
    urls: list[str] = []
    registry = new_registry("llmgw-agent", "0")
    task = asyncio.create_task(metrics_server.serve_metrics(listen, tls, registry, SystemClock(), urls.append))
    await eventually(lambda: bool(urls) or task.done(), within=WITHIN, what="the page")
    return task, urls[0]


async def end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_a_taken_port_is_waited_for(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        with socket.create_server(("127.0.0.1", 0)) as held:
            listen = Listen("127.0.0.1", held.getsockname()[1])
            waiting = asyncio.create_task(served(listen, None, monkeypatch))
            await eventually(lambda: "metrics are not served" in caplog.text, within=WITHIN, what="a warning")
        task, url = await waiting
        assert "llmgw_build_info" in await page(url)
        await end(task)

    asyncio.run(body())


def test_with_tls_the_page_is_served_over_https(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        tls = TestAuthority(tmp_path).issue("n1")
        task, url = await served(Listen("127.0.0.1", 0), tls, monkeypatch)
        assert url.startswith("https://")
        assert "llmgw_build_info" in await page(url, ssl.create_default_context(cafile=str(tls.ca)))
        await end(task)

    asyncio.run(body())


def test_plaintext_to_other_machines_must_be_asked_for() -> None:
    with pytest.raises(ConfigError, match=r"metrics\.listen: 0\.0\.0\.0:9310 would serve plaintext to other machines"):
        load(AgentConfig, None, ["metrics.listen=0.0.0.0:9310"])
    assert load(AgentConfig, None, ["metrics.listen=0.0.0.0:9310", "insecure=true"]).metrics.listen == "0.0.0.0:9310"
    assert load(AgentConfig, None, ["metrics.listen=null"]).metrics.listen is None
