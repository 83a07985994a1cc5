"""The wire side of the fake engine: one asyncio protocol per connection, every byte under the script's control.

A script is an async function that gets an `Exchange` (one request and the power to answer it) and decides what bytes
leave, in which writes, with which pauses, and how the connection ends. Nothing is added and nothing is buffered away:
what a script sends is what the peer gets, so a test can compare the relayed bytes with the sent ones.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
import time
import traceback
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

HEAD_END = b"\r\n\r\n"


class BadRequestError(Exception):
    """The peer sent something that is not a well-formed HTTP/1.1 request; the message says what."""


@dataclass(eq=False)
class Request:
    """One request as it came over the wire.

    `raw` is the request byte for byte (head and body as framed), `body` the body without its framing.
    `closed` is set when the peer closed the connection before the script had finished, at `closed_at` (monotonic seconds).
    """

    method: str
    target: str
    headers: list[tuple[str, str]]
    raw: bytes
    body: bytes
    connection: int
    arrived_at: float
    closed: threading.Event = field(default_factory=threading.Event)
    closed_at: float | None = None
    finished: threading.Event = field(default_factory=threading.Event)

    def values(self, name: str) -> list[str]:
        """All values of a header, in the order they came."""
        return [value for key, value in self.headers if key.lower() == name.lower()]

    def header(self, name: str) -> str | None:
        """The one value of a header; None when it is absent. A repeated header is an error in itself."""
        values = self.values(name)
        assert len(values) <= 1, f"header {name} came {len(values)} times: {values}"
        return values[0] if values else None

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]


class Gate:
    """Holds scripts back until the test opens it; may be opened from any thread, stays open."""

    def __init__(self) -> None:
        self._future: Future[None] = Future()

    def open(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    async def passed(self) -> None:
        await asyncio.shield(asyncio.wrap_future(self._future))


class Exchange:
    """One request being answered. Only for use inside the engine's loop, by scripts."""

    def __init__(self, connection: Connection, request: Request) -> None:
        self._connection = connection
        self.request = request

    async def send(self, data: bytes) -> None:
        """One write. Waits while the peer does not read; raises ConnectionResetError when it is gone."""
        await self._connection.write(data)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def wait(self, gate: Gate) -> None:
        await gate.passed()

    async def silence(self) -> None:
        """Says nothing until the peer gives up (the script is cancelled then)."""
        await asyncio.Event().wait()

    async def receive(self, size: int) -> bytes:
        """Bytes that come after the request, as on an upgraded connection."""
        return await self._connection.read(size)

    def close(self) -> None:
        """Closes after what was written has been sent (FIN)."""
        self._connection.close()

    def reset(self) -> None:
        """Tears the connection down with RST; what the peer has not read yet may be lost to it."""
        self._connection.reset()


Script = Callable[[Exchange], Awaitable[None]]


class Host:
    """What a connection needs from its engine; FakeEngine implements it."""

    close_idle_after: float | None = None
    refuse_bodies: bytes | None = None
    """When set: sent as soon as a head with a body is in, then the connection is closed, the body unread."""

    def opened(self, connection: Connection) -> int:
        raise NotImplementedError

    def closed(self, connection: Connection) -> None:
        raise NotImplementedError

    def arrived(self, request: Request) -> Script:
        raise NotImplementedError

    def went_wrong(self, what: str) -> None:
        raise NotImplementedError


class Connection(asyncio.Protocol):
    """Reads requests one after the other, runs a script for each, notices when the peer goes away."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._buffer = bytearray()
        self._data = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._gone = False
        self._current: Request | None = None
        self._task: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None
        self.number = 0

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.number = self._host.opened(self)
        self._task = asyncio.get_running_loop().create_task(self._serve())

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._data.set()

    def eof_received(self) -> bool:
        self._peer_left()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._peer_left()
        self._host.closed(self)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def _peer_left(self) -> None:
        if self._gone:
            return
        self._gone = True
        if self._current is not None and not self._current.finished.is_set():
            self._current.closed_at = time.monotonic()
            self._current.closed.set()
        self._writable.set()
        if self._task is not None:
            self._task.cancel()

    # for Exchange

    async def write(self, data: bytes) -> None:
        if self._gone or self._transport is None or self._transport.is_closing():
            raise ConnectionResetError("the peer has closed the connection")
        self._transport.write(data)
        await self._writable.wait()

    async def read(self, size: int) -> bytes:
        while len(self._buffer) < size:
            await self._more()
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def reset(self) -> None:
        if self._transport is None:
            return
        raw = self._transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    @property
    def idle(self) -> bool:
        return self._current is None and not self._buffer

    # the request loop

    async def _serve(self) -> None:
        try:
            while True:
                request = await self._next_request()
                self._current = request
                script = self._host.arrived(request)
                try:
                    await script(Exchange(self, request))
                finally:
                    if not self._gone:
                        request.finished.set()
                    self._current = None
        except TimeoutError:
            self.close()
        except (ConnectionResetError, asyncio.CancelledError):
            # The peer left, or the script tore the connection down itself; both are recorded already.
            return
        except BadRequestError as error:
            self._host.went_wrong(str(error))
            if self._transport is not None:
                self._transport.write(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n" + str(error).encode())
            self.close()
        except Exception:  # noqa: BLE001 - the task's outermost edge: a script with a bug must not leave the peer waiting
            self._host.went_wrong(traceback.format_exc())
            self.reset()

    async def _more(self, limit: float | None = None) -> None:
        self._data.clear()
        async with asyncio.timeout(limit):
            await self._data.wait()

    async def _next_request(self) -> Request:
        while (end := self._buffer.find(HEAD_END)) < 0:
            await self._more(self._host.close_idle_after if not self._buffer else None)
        head = bytes(self._buffer[: end + 4])
        method, target, headers = parse_head(head)
        lengths = [value for name, value in headers if name.lower() == "content-length"]
        codings = [value.lower() for name, value in headers if name.lower() == "transfer-encoding"]
        if len(lengths) > 1 or (lengths and codings):
            raise BadRequestError(f"ambiguous framing: content-length {lengths}, transfer-encoding {codings}")
        if self._host.refuse_bodies is not None and (codings or lengths):
            await self.write(self._host.refuse_bodies)
            self.close()
            raise ConnectionResetError
        body, consumed = b"", len(head)
        if codings:
            body, consumed = await self._chunked_body(len(head))
        elif lengths:
            consumed = len(head) + int(lengths[0])
            while len(self._buffer) < consumed:
                await self._more()
            body = bytes(self._buffer[len(head) : consumed])
        raw = bytes(self._buffer[:consumed])
        del self._buffer[:consumed]
        return Request(method, target, headers, raw, body, self.number, time.monotonic())

    async def _chunked_body(self, position: int) -> tuple[bytes, int]:
        pieces: list[bytes] = []
        while True:
            while (end := self._buffer.find(b"\r\n", position)) < 0:
                await self._more()
            size = int(bytes(self._buffer[position:end]).partition(b";")[0], 16)
            stop = end + 2 + size + 2
            while len(self._buffer) < stop:
                await self._more()
            if self._buffer[stop - 2 : stop] != b"\r\n":
                raise BadRequestError("a chunk does not end with CRLF")
            if size == 0:
                return b"".join(pieces), stop
            pieces.append(bytes(self._buffer[end + 2 : stop - 2]))
            position = stop


def parse_head(head: bytes) -> tuple[str, str, list[tuple[str, str]]]:
    """Splits a request head; strict, so that a sloppy proxy is found out. Raises BadRequestError."""
    lines = head[:-4].split(b"\r\n")
    if any(b"\n" in line or b"\r" in line for line in lines):
        raise BadRequestError("a bare CR or LF in the head")
    parts = lines[0].split(b" ")
    if len(parts) != 3 or parts[2] != b"HTTP/1.1":
        raise BadRequestError(f"not an HTTP/1.1 request line: {lines[0]!r}")
    headers: list[tuple[str, str]] = []
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        if not colon or not name or name != name.strip():
            raise BadRequestError(f"not a header line: {line!r}")
        headers.append((name.decode("latin-1"), value.strip().decode("latin-1")))
    return parts[0].decode("latin-1"), parts[1].decode("latin-1"), headers
