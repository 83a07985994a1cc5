"""Gives a connection to the aiohttp application for one request, on the same port.

The request was read and checked already; aiohttp gets a head made anew from the few fields that matter, and closes the
connection after its answer, so nothing else ever reaches it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

if TYPE_CHECKING:
    from llmgw_router.client.connection import ClientConnection


class Handover:
    def __init__(self, app: web.Application) -> None:
        # Without access_log=None aiohttp would format a line for each request.
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False)

    async def start(self) -> None:
        await self._runner.setup()

    async def stop(self) -> None:
        await self._runner.cleanup()

    def take(self, connection: ClientConnection) -> None:
        server = self._runner.server
        assert server is not None
        protocol = server()
        transport = connection.transport
        head = b"%b %b HTTP/1.1\r\nHost: router\r\nConnection: close\r\nAccept: %b\r\nX-Request-Id: %b\r\n\r\n" % (
            connection.head.method,
            connection.head.target,
            connection.head.accept or b"*/*",
            connection.head.request_id,
        )
        connection.front.left(connection)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        protocol.data_received(head)
