"""Connections to engines: made, used again, given up in any moment, without one being left behind."""

from __future__ import annotations

import asyncio

import pytest

from llmgw_router.engine.connection import EngineConnection
from llmgw_router.engine.pool import Pool
from llmgw_router.errors import BadAnswerError, BrokenError, ConnectError, EngineError
from llmgw_router.table.replica import Replica
from llmgw_router.table.spec import Address, EndpointSpec
from llmgw_testing.wait import eventually


class Owner:
    def __init__(self) -> None:
        self.data: list[bytes] = []
        self.complete = False
        self.error: EngineError | None = None

    def engine_data(self, connection: EngineConnection, data: bytes, complete: bool) -> None:
        self.data.append(data)
        self.complete = complete

    def engine_lost(self, connection: EngineConnection, error: EngineError) -> None:
        if not self.complete:
            self.error = error

    def engine_writable(self, writable: bool) -> None:
        raise AssertionError("nothing much is sent")


class Engine:
    """Answers whatever it gets with ``answer``; knows how many clients it has."""

    def __init__(self, answer: bytes = b"", *, close: bool = False) -> None:
        self.answer = answer
        self.close = close
        self.open = 0
        self.accepted = 0

    async def __aenter__(self) -> Engine:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close()
        await self.server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        self.accepted += 1
        try:
            while await reader.read(65_536):
                writer.write(self.answer)
                if self.close:
                    break
        except OSError:
            pass
        finally:
            self.open -= 1
            writer.close()

    def replica(self) -> Replica:
        return Replica(EndpointSpec("e", Address("127.0.0.1", self.port), ("m",)))


def pool(connect: float = 5.0, keep: float = 4.0) -> Pool:
    return Pool(asyncio.get_running_loop(), connect_seconds=connect, keep_alive_seconds=keep)


async def ask(connection: EngineConnection) -> Owner:
    owner = Owner()
    connection.send(owner, b"POST / HTTP/1.1\r\n\r\n")
    await eventually(lambda: owner.complete or owner.error is not None, within=10, what="an answer")
    return owner


def test_connection_is_used_again_while_it_is_fresh_and_not_after() -> None:
    async def run() -> None:
        async with Engine(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok") as engine:
            replica, it = engine.replica(), pool()
            connection = await it.connect(replica)
            assert (await ask(connection)).data == [b"ok"]
            connection.release(now=100)
            assert it.take(replica, 103.9) is connection
            assert (await ask(connection)).data == [b"ok"]
            connection.release(now=200)
            assert it.take(replica, 204) is None
            await eventually(lambda: engine.open == 0, within=10, what="the old connection to be closed")
            assert not replica.connections

    asyncio.run(run())


def test_idle_connections_are_swept_and_those_of_a_removed_replica_retired() -> None:
    async def run() -> None:
        async with Engine(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") as engine:
            replica, it = engine.replica(), pool()
            for now in (100, 102):
                connection = await it.connect(replica)
                await ask(connection)
                connection.release(now)
            it.sweep([replica], 104)
            assert len(replica.idle) == 1
            it.retire(replica)
            await eventually(lambda: engine.open == 0, within=10, what="all connections to be closed")

    asyncio.run(run())


@pytest.mark.parametrize("turns", range(8))
def test_connecting_given_up_in_any_moment_leaves_nothing_behind(turns: int) -> None:
    async def run() -> None:
        async with Engine(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") as engine:
            replica = engine.replica()
            task = asyncio.create_task(pool().connect(replica))
            for _ in range(turns):
                await asyncio.sleep(0)
            finished = task.done()
            task.cancel()
            if finished:
                (await task).close()
            else:
                with pytest.raises(asyncio.CancelledError):
                    await task
            later = await pool().connect(replica)
            await ask(later)
            later.close()
            # Connections are accepted in turn, so the first one, if there was one, is known by now.
            await eventually(lambda: not replica.connections and engine.open == 0, within=10, what="the connection to be gone")

    asyncio.run(run())


def test_refused_connection_is_named() -> None:
    async def run() -> None:
        async with Engine() as engine:
            replica = engine.replica()
        with pytest.raises(ConnectError, match=r"engine e at http://127\.0\.0\.1:\d+ cannot be reached"):
            await pool().connect(replica)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("answer", "data", "error"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\nuntil the end", b"until the end", None),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx", b"x", None),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n2;e\r\nbc\r\n0\r\nT: 1\r\n\r\n", b"abc", None),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"", None),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", b"short", BrokenError),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", b"ab", BrokenError),
        (b"", b"", BrokenError),
        (b"HTTP/1.1 2", b"", BrokenError),
        (b"SSH-2.0-OpenSSH\r\n", b"", BadAnswerError),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\nnot a size\r\n", b"ok", BadAnswerError),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n", b"", BadAnswerError),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000, b"", BadAnswerError),
    ],
)
def test_answers_of_every_kind(answer: bytes, data: bytes, error: type[EngineError] | None) -> None:
    async def run() -> None:
        async with Engine(answer, close=True) as engine:
            owner = await ask(await pool().connect(engine.replica()))
            assert b"".join(owner.data) == data
            assert isinstance(owner.error, error) if error is not None else owner.error is None
            await eventually(lambda: engine.open == 0, within=10, what="the connection to be closed")

    asyncio.run(run())


def test_more_than_was_asked_for_is_not_passed_on_and_ends_the_connection() -> None:
    async def run() -> None:
        one = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
        async with Engine(one + one.replace(b"ok", b"no")) as engine:
            replica = engine.replica()
            connection = await pool().connect(replica)
            owner = await ask(connection)
            assert b"".join(owner.data) == b"ok"
            connection.release(now=1)
            assert not replica.idle

    asyncio.run(run())
