"""Giving weights to other agents that misbehave: they stop reading, or show what is no token."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from aiohttp import ClientSession, web

from llmgw_agent.weights import SourceUnavailableError, peer_app, serve
from llmgw_agent.weights.line import Member
from llmgw_base.clock import SystemClock
from llmgw_testing.file_server import FileServer
from llmgw_testing.memserver import MemoryServer
from llmgw_testing.wait import eventually
from llmgw_testing.weights import MIB, data, opened, sha256
from llmgw_testing.weights_fleet import SharingNode


@contextlib.asynccontextmanager
async def served(app: web.Application) -> AsyncIterator[str]:
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def test_who_stops_reading_loses_the_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "_STALLED", 0.2)
    big = data(32 * MIB)

    async def run() -> None:
        async with FileServer() as server, opened(tmp_path) as store, ClientSession() as session:
            server.put("/m.bin", big)
            await store.ensure(server.url("/m.bin"))
            async with served(peer_app(store, clock=SystemClock(), max_streams=1)) as url:
                path, port = f"/blobs/sha256/{sha256(big)}", urlsplit(url).port
                with socket.create_connection(("127.0.0.1", port)) as frozen:
                    frozen.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
                    assert await asyncio.to_thread(frozen.recv, 1)

                    async def given() -> bool:
                        async with session.get(url + path, headers={"Range": "bytes=0-0"}) as answer:
                            return answer.status == 206

                    await eventually(given, within=30, what="the place of the one that reads nothing")

    asyncio.run(run())


def test_an_agent_cannot_send_another_one_elsewhere(tmp_path: Path) -> None:
    seen: list[str] = []

    async def elsewhere(request: web.Request) -> web.Response:
        seen.append(request.path)
        if request.path != "/inside":
            raise web.HTTPFound("/inside")
        return web.json_response({"work": 1, "digests": []})

    async def run() -> None:
        app = web.Application()
        app.router.add_get("/{path:.*}", elsewhere)
        async with served(app) as url, SharingNode(tmp_path, "n1", MemoryServer(SystemClock())) as node:
            assert node.shared.fleet is not None
            with pytest.raises(SourceUnavailableError):
                await node.shared.fleet._ask(Member("n2", url, here=False, since=1), "c" * 64)

    asyncio.run(run())
    assert seen == ["/contents/" + "c" * 64]


def test_bytes_that_are_no_text_are_no_token(tmp_path: Path) -> None:
    async def run() -> bytes:
        async with SharingNode(tmp_path, "n1", MemoryServer(SystemClock())) as node:
            assert node.shared._url is not None
            address = urlsplit(node.shared._url)
            reader, writer = await asyncio.open_connection(address.hostname, address.port)
            writer.write(b"GET /contents/x HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer \xff\r\n\r\n")
            try:
                return await reader.readline()
            finally:
                writer.close()
                await writer.wait_closed()

    assert b" 403 " in asyncio.run(run())
