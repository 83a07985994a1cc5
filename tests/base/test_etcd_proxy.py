"""The faulty proxy does what its name says: a test bench that lies proves nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from llmgw_testing.etcd_server import free_port
from llmgw_testing.scenario import run_clean
from llmgw_testing.tcp_proxy import TcpProxy


@asynccontextmanager
async def echo(received: list[bytes]) -> AsyncIterator[TcpProxy]:
    """A proxy in front of a server that sends back what it gets, and notes it in ``received``."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1000):
                received.append(data)
                writer.write(data)
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, TcpProxy(server.sockets[0].getsockname()[1]) as proxy:
        yield proxy


async def silent(reader: asyncio.StreamReader, seconds: float = 0.2) -> bool:
    try:
        await asyncio.wait_for(asyncio.shield(reading := asyncio.ensure_future(reader.read(1))), seconds)
    except TimeoutError:
        reading.cancel()
        await asyncio.wait({reading})
        return True
    return False


def test_the_proxy_and_its_faults() -> None:
    async def main() -> None:
        received: list[bytes] = []
        async with echo(received) as proxy:
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            writer.write(b"1")
            assert await reader.read(10) == b"1"

            proxy.hold_answers()
            writer.write(b"2")
            assert await silent(reader)
            assert received == [b"1", b"2"]
            proxy.heal()
            assert await reader.read(10) == b"2"

            proxy.blackhole()
            writer.write(b"3")
            assert await silent(reader)
            assert received == [b"1", b"2"]
            proxy.heal()
            assert await reader.read(10) == b"3"

            proxy.delay = 0.15
            began = time.monotonic()
            writer.write(b"4")
            assert await reader.read(10) == b"4"
            assert time.monotonic() - began >= 0.3
            proxy.delay = 0

            proxy.cut()
            with pytest.raises(ConnectionResetError):
                await reader.read(1)
            writer.close()

            proxy.refuse()
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            with pytest.raises(ConnectionResetError):
                await reader.read(1)
            writer.close()
            proxy.heal()
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            writer.write(b"5")
            assert await reader.read(10) == b"5"
            writer.write_eof()
            assert await reader.read(10) == b""
            writer.close()
            assert proxy.accepted == 3

    run_clean(main())


def test_a_proxy_to_nowhere_resets() -> None:
    async def main() -> None:
        async with TcpProxy(free_port()) as proxy:
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            with pytest.raises(ConnectionResetError):
                await reader.read(1)
            writer.close()

    run_clean(main())
