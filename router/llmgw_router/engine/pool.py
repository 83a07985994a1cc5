"""Connections to engines: an idle one is used again, else a new one is made, within the connect limit."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable

from llmgw_router.engine.connection import EngineConnection
from llmgw_router.errors import ConnectError
from llmgw_router.table.replica import Replica


class Pool:
    """For all replicas; the idle connections of each are kept with it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, connect_seconds: float, keep_alive_seconds: float) -> None:
        self._loop = loop
        self._connect_seconds = connect_seconds
        self._keep_alive = keep_alive_seconds
        self._tls: ssl.SSLContext | None = None

    def take(self, replica: Replica, now: float) -> EngineConnection | None:
        """An idle connection, the most recently used first; those that idled too long are closed."""
        idle = replica.idle
        while idle:
            connection = idle.pop()
            if not connection.closing and now - connection.idle_since < self._keep_alive:
                return connection
            connection.close()
        return None

    async def connect(self, replica: Replica) -> EngineConnection:
        """A new connection.

        Raises:
            ConnectError: refused, unreachable, or not made in time.
        """
        address = replica.spec.address
        connection = EngineConnection(replica)
        try:
            async with asyncio.timeout(self._connect_seconds):
                await self._loop.create_connection(
                    lambda: connection, address.host, address.port, ssl=self._context() if address.tls else None
                )
        except asyncio.CancelledError:
            # It may have been made in the same moment.
            connection.abandon()
            raise
        except TimeoutError as error:
            connection.abandon()
            raise ConnectError(f"engine {replica.id} at {address} took no connection in {self._connect_seconds:g} s") from error
        except OSError as error:
            raise ConnectError(f"engine {replica.id} at {address} cannot be reached: {error.strerror or error}") from error
        return connection

    def sweep(self, replicas: Iterable[Replica], now: float) -> None:
        """Closes connections that idled too long, before the engine does."""
        for replica in replicas:
            while replica.idle and now - replica.idle[0].idle_since >= self._keep_alive:
                replica.idle.pop(0).close()

    def retire(self, replica: Replica) -> None:
        """Closes a removed replica's idle connections; busy ones close as they finish."""
        idle, replica.idle = replica.idle, []
        for connection in idle:
            connection.close()

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls
