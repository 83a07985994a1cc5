"""Who is connected to engines is read once for all of them, and anew before anybody is disturbed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from llmgw_agent.engines.client import Answer, EngineClient
from llmgw_agent.shard import watch_work
from llmgw_agent.shard.connections import TABLE_SECONDS, Connections
from llmgw_agent.shard.liveness import Judge
from llmgw_agent.shard.watch_work import Liveness
from llmgw_proto.records import EndpointRecord
from llmgw_testing.clock import FakeClock

HEAD = "  sl  local_address rem_address   st\n"


def test_the_table_is_read_again_only_when_it_is_old(tmp_path: Path) -> None:
    async def body() -> None:
        clock = FakeClock()
        table = Connections(clock, tmp_path)
        assert await table.count(4321) == 0
        (tmp_path / "tcp").write_text(HEAD + "   0: 0100007F:10E1 0100007F:9999 01\n   1: 0100007F:10E1 0100007F:9998 0A\n")
        await clock.advance(TABLE_SECONDS / 2)
        assert [await table.count(4321), await table.count(1)] == [0, 0]
        await clock.advance(TABLE_SECONDS / 2)
        assert [await table.count(4321), await table.count(1)] == [1, 0]

    asyncio.run(body())


class Silent(EngineClient):
    """An engine without metrics; remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def _ask(self, method: str, path: str, body: object, timeout: float) -> Answer:
        self.asked.append(path)
        return Answer(404 if method == "GET" else 200, b"")


@pytest.mark.parametrize("connected", [0, 1])
def test_an_engine_to_which_somebody_has_just_come_is_not_asked_for_a_token(
    monkeypatch: pytest.MonkeyPatch, connected: int
) -> None:
    monkeypatch.setattr(watch_work, "open_connections", lambda port: connected)
    address = "http://127.0.0.1:1"
    endpoint = EndpointRecord(
        replica="m-1", node="n", model="m", epoch=1, url=address, served_name="m", capabilities=["completions"]
    )

    async def nobody(port: int) -> int:
        return 0

    async def body() -> None:
        clock, client = FakeClock(), Silent()
        liveness = Liveness(clock, Judge(stall=120, idle=10), endpoint, 1, connections=nobody)
        for _ in range(5):
            assert await liveness.objection(client) is None
            await clock.advance(5)
        assert ("/v1/completions" in client.asked) == (connected == 0)

    asyncio.run(body())
