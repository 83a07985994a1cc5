"""A TCP proxy that misbehaves on command, to stand between a client and a server of 127.0.0.1.

::

    async with TcpProxy(server_port) as proxy:
        connect(proxy.port)
        proxy.blackhole()             # connections stay open, nothing passes in either direction; heal() lets it flow
        proxy.hold_answers()          # requests pass, answers do not
        proxy.cut()                   # every connection is reset, now
        proxy.refuse()                # ...and new ones are reset at once too, until heal()
        proxy.delay = 0.25            # seconds added in each direction
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from types import TracebackType
from typing import Self

CHUNK = 65_536


class TcpProxy:
    def __init__(self, port: int, *, host: str = "127.0.0.1") -> None:
        self._target = (host, port)
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._requests = asyncio.Event()
        self._answers = asyncio.Event()
        self._refusing = False
        self._closing = False
        self.delay = 0.0
        self.port = 0
        #: Connections ever accepted.
        self.accepted = 0
        self.heal()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._closing = True
        self._server.close()
        self.cut()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    # --- faults -------------------------------------------------------------------------------------------------------

    def blackhole(self) -> None:
        self._requests.clear()
        self._answers.clear()

    def hold_answers(self) -> None:
        self._answers.clear()

    def refuse(self) -> None:
        self._refusing = True
        self.cut()

    def cut(self) -> None:
        for writer in self._writers:
            _reset(writer)

    def heal(self) -> None:
        """Ends blackhole, hold_answers and refuse; what was held flows now."""
        self._requests.set()
        self._answers.set()
        self._refusing = False

    # --- inside -------------------------------------------------------------------------------------------------------

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        self._writers.add(writer)
        self.accepted += 1
        upstream: asyncio.StreamWriter | None = None
        try:
            if self._refusing or self._closing:  # a connection may be handed over after the server was closed
                return
            upstream_reader, upstream = await asyncio.open_connection(*self._target)
            self._writers.add(upstream)
            pumps = [
                asyncio.ensure_future(self._pump(reader, upstream, self._requests)),
                asyncio.ensure_future(self._pump(upstream_reader, writer, self._answers)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_EXCEPTION)
                if all(pump.done() and pump.exception() is None for pump in pumps):
                    writer.close()  # both sides said their last; anything else ends in a reset
                    upstream.close()
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except OSError:
            pass  # the target is down; the client sees its connection reset
        except asyncio.CancelledError:
            pass  # the proxy closes, and asyncio's server would report this as an error
        finally:
            for each in (writer, upstream):
                if each is not None:
                    self._writers.discard(each)
                    if not each.is_closing():
                        _reset(each)
            self._connections.discard(task)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event) -> None:
        """Copies until the end, and that too; bytes leave ``delay`` after they came, in order, however fast they come.

        Raises:
            OSError: one side was reset.
        """
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[tuple[float, bytes | OSError]] = asyncio.Queue(64)

        async def fill() -> None:
            try:
                while data := await reader.read(CHUNK):
                    await queue.put((loop.time() + self.delay, data))
                await queue.put((loop.time() + self.delay, b""))
            except OSError as error:
                await queue.put((loop.time(), error))

        filling = asyncio.ensure_future(fill())
        try:
            while True:
                due, data = await queue.get()
                await asyncio.sleep(max(0.0, due - loop.time()))
                await gate.wait()
                if isinstance(data, OSError):
                    raise data
                if not data:
                    writer.write_eof()
                    return
                writer.write(data)
                await writer.drain()
        finally:
            filling.cancel()
            await asyncio.gather(filling, return_exceptions=True)


def _reset(writer: asyncio.StreamWriter) -> None:
    """Closes with RST rather than FIN, as a crash does."""
    sock = writer.get_extra_info("socket")
    if sock is not None and not writer.is_closing():
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
