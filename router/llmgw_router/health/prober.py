"""Active probes: asks suspects for their health, and every engine once for its list of models."""

from __future__ import annotations

import asyncio

import msgspec

from llmgw_router.engine.connection import EngineConnection
from llmgw_router.engine.pool import Pool
from llmgw_router.errors import BrokenError, EngineError, SilentError
from llmgw_router.table.replica import Replica

_MAX_ANSWER = 4 * 2**20


class _Cards(msgspec.Struct):
    data: list[dict[str, object]]


_decode = msgspec.json.Decoder(_Cards).decode


class _Reader:
    """Owns an engine's connection for one GET."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.future: asyncio.Future[tuple[int, bytes]] = loop.create_future()
        self._parts: list[bytes] = []
        self._size = 0

    def engine_data(self, connection: EngineConnection, data: bytes, complete: bool) -> None:
        self._parts.append(data)
        self._size += len(data)
        if self._size > _MAX_ANSWER:
            self.engine_lost(connection, BrokenError(f"engine {connection.replica.id} answered a probe with too much"))
        elif complete and not self.future.done():
            self.future.set_result((connection.status, b"".join(self._parts)))

    def engine_lost(self, connection: EngineConnection, error: EngineError) -> None:
        if not self.future.done():
            self.future.set_exception(error)

    def engine_writable(self, writable: bool) -> None:
        """A probe has no body."""


class Prober:
    """One GET at a time; who is probed when is decided in :mod:`llmgw_router.health.watch`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pool: Pool, *, timeout: float, path: str) -> None:
        self._loop = loop
        self._pool = pool
        self._timeout = timeout
        self._path = path.encode()

    async def healthy(self, replica: Replica) -> EngineError | None:
        """None when it answers with a status below 500; a path that it does not have is as good a sign of life as any."""
        try:
            status, _ = await self._get(replica, self._path)
        except EngineError as error:
            return error
        return None if status < 500 else SilentError(f"engine {replica.id} answers {status} to {self._path.decode()}")

    async def cards(self, replica: Replica) -> dict[str, dict[str, object]] | None:
        """The engine's own words about its models, by id; None when it has none."""
        try:
            status, body = await self._get(replica, b"/v1/models")
            if status != 200:
                return None
            return {str(each["id"]): each for each in _decode(body).data if "id" in each}
        except (EngineError, msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            return None

    async def _get(self, replica: Replica, path: bytes) -> tuple[int, bytes]:
        connection: EngineConnection | None = None
        try:
            async with asyncio.timeout(self._timeout):
                connection = await self._pool.connect(replica)
                reader = _Reader(self._loop)
                head = replica.head(path).replace(b"POST ", b"GET ", 1)
                connection.send(reader, head + b"Connection: close\r\n\r\n")
                return await reader.future
        except TimeoutError:
            raise SilentError(f"engine {replica.id} did not answer a probe in {self._timeout:g} s") from None
        finally:
            if connection is not None:
                connection.close()
