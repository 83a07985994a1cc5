"""One client's connection: reads requests one after the other and strictly, writes answers, keeps time.

::

    HEAD ──▶ BODY ──▶ BUSY ──▶ HEAD …           LINGER: an answer went out before the body was in; the rest is read and
      │        │        │                               thrown away, so that the client gets to see the answer
      └────────┴────────┴──▶ LINGER ──▶ closed   TUNNEL: bytes go to another owner (websocket)

httptools parses each head in its strict mode, with a parser per request; a body with a length is counted here.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Protocol, cast

import httptools

from llmgw_router.api import errors as api_errors
from llmgw_router.api.routes import Family, Route
from llmgw_router.client.head import RequestHead
from llmgw_router.errors import ApiError
from llmgw_router.http import render
from llmgw_router.http.chunked import ChunkedBody, ChunkError

if TYPE_CHECKING:
    from llmgw_router.admission.keys import Keys
    from llmgw_router.client.front import Front
    from llmgw_router.relay.exchange import Exchange

_PIPELINE_LIMIT = 65_536
_LENGTH = re.compile(rb"\r\ncontent-length: ?(\d{1,9})\r\n", re.IGNORECASE)
_TEMPLATE_TRIES = 3
"""A client whose heads differ each time is not worth more of them."""
_LINGER_SECONDS = 5.0
_LINGER_BYTES = 128 * 2**20

# States. Plain integers: they are compared several times per request, and members of an Enum cost five times as much.
HEAD, BODY, BUSY, LINGER, TUNNEL = range(5)


class Tunnel(Protocol):
    """Who owns the bytes after an upgrade."""

    def client_data(self, data: bytes) -> None: ...
    def client_gone(self) -> None: ...
    def client_writable(self, writable: bool) -> None: ...


class ClientConnection(asyncio.Protocol):
    transport: asyncio.Transport

    state = HEAD
    exchange: Exchange | None = None
    tunnel: Tunnel | None = None
    route: Route | None = None
    key_name = ""
    began = 0.0
    """When the first byte of the current request came (monotonic)."""
    deadline = 0.0
    keep_alive = False
    peer = ""
    reserved = 0
    """Bytes set aside for the body."""
    discarded = 0
    _parser: httptools.HttpRequestParser | None = None
    _pending = b""
    _paused = False
    _blocked = False
    """The client reads too slowly for what is written to it."""
    _tail = b""
    _head_size = 0
    _requests = 0
    _before = b""
    _after = b""
    _keys: Keys | None = None
    """In force when the head that may repeat was checked."""
    _received = 0
    """Of the body; with chunks, their framing counted too."""
    _chunks: ChunkedBody | None = None

    def __init__(self, front: Front) -> None:
        self.front = front
        self.head = RequestHead(front.session_header)
        self._pieces: list[bytes] = []

    def _begin(self) -> httptools.HttpRequestParser:
        """A new request: forgets the one before."""
        front = self.front
        self.began = now = front.now()
        self.deadline = now + front.limits.head_seconds
        head = self.head = RequestHead(front.session_header)
        parser = self._parser = httptools.HttpRequestParser(head)
        self._head_size = 0
        self._received = 0
        self._before = b""
        self.route = None
        self.key_name = ""
        return parser

    @property
    def idle(self) -> bool:
        """Between two requests."""
        return self.state == HEAD and self._parser is None and not self._pending

    @property
    def busy(self) -> bool:
        """In the middle of a request."""
        return self.state in (BODY, BUSY, TUNNEL)

    # --- asyncio.Protocol ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.peer = peer[0] if isinstance(peer, tuple) else ""
        self.deadline = self.front.now() + self.front.limits.head_seconds
        refusal = self.front.joined(self)
        if refusal is not None:
            self.keep_alive = False
            self._refuse(refusal)
            return
        self.transport.set_write_buffer_limits(high=self.front.limits.write_buffer_bytes)

    def connection_lost(self, exc: Exception | None) -> None:
        self.front.left(self)
        self._gone()

    def eof_received(self) -> None:
        # Half-closed is closed: waiting to see whether the client still reads would leave engines working for nobody.
        self._gone()

    def _gone(self) -> None:
        exchange, tunnel = self.exchange, self.tunnel
        if exchange is not None:
            exchange.client_gone()
        if tunnel is not None:
            self.tunnel = None
            tunnel.client_gone()
        self.body_done()

    def pause_writing(self) -> None:
        self._blocked = True
        self._writable(False)

    def resume_writing(self) -> None:
        self._blocked = False
        self._writable(True)
        if self.state == HEAD and self._pending:
            self.front.loop.call_soon(self._next)

    def _writable(self, writable: bool) -> None:
        if self.exchange is not None:
            self.exchange.client_writable(writable)
        elif self.tunnel is not None:
            self.tunnel.client_writable(writable)

    def data_received(self, data: bytes) -> None:
        state = self.state
        if state == HEAD:
            if self._blocked:
                # A client that does not take its answers gets no further ones until it does.
                self._hold(data)
            else:
                self._read_head(data)
        elif state == BODY:
            self._read_body(data)
        elif state == BUSY:
            self._hold(data)
        elif state == TUNNEL:
            if self.tunnel is not None:
                self.tunnel.client_data(data)
        else:
            self.discarded += len(data)
            if self.discarded > _LINGER_BYTES:
                self.transport.abort()

    def _hold(self, data: bytes) -> None:
        """Pipelined: it waits its turn, and too much of it stops the reading."""
        self._pending += data
        if len(self._pending) > _PIPELINE_LIMIT and not self._paused:
            self._paused = True
            self.transport.pause_reading()

    # --- the head -----------------------------------------------------------------------------------------------------

    def _read_head(self, data: bytes) -> None:
        if self._before and self._parser is None and self._same_again(data):
            return
        while data:
            parser = self._parser or self._begin()
            tail = self._tail
            end = (tail + data if tail else data).find(b"\r\n\r\n")
            if end < 0:
                part, rest = data, b""
                self._tail = (tail + data)[-3:]
            else:
                end += 4 - len(tail)
                part, rest = data[:end], data[end:]
                self._tail = b""
            self._head_size += len(part)
            limit = self.front.limits.head_bytes
            if self._head_size > limit:
                message = f"The header fields are longer than {limit} bytes; send fewer or shorter ones."
                self._refuse(ApiError(431, "head_too_large", message))
                return
            try:
                parser.feed_data(part)
            except httptools.HttpParserUpgrade:
                pass
            except httptools.HttpParserError as error:
                self._refuse(ApiError(400, "bad_request", f"This is not a valid HTTP/1.1 request: {_cause(error)}."))
                return
            if self.head.complete:
                self._parser = None
                self._head_done(parser, part, rest)
                return
            data = rest

    def _head_done(self, parser: httptools.HttpRequestParser, part: bytes, rest: bytes) -> None:
        head = self.head
        head.method = parser.get_method()
        if not head.request_id:
            head.request_id = self.front.new_id()
            head.own_id = True
        refusal = head.check(parser.get_http_version(), self.front.limits)
        self.keep_alive = head.keep_alive
        if refusal is not None:
            self._refuse(refusal)
            return
        refusal = self.front.head(self)
        if self.state == TUNNEL:
            if rest and self.tunnel is not None:
                self.tunnel.client_data(rest)
        elif refusal is not None:
            self._refuse_at_head(refusal, rest)
        else:
            if self._requests < _TEMPLATE_TRIES and len(part) == self._head_size:
                self._requests += 1
                self._learn(part)
            self._go_on(head, rest)

    def _learn(self, part: bytes) -> None:
        """Remembers this head, whole but for the digits of its Content-Length, when it is of the kind that repeats."""
        head = self.head
        match = _LENGTH.search(part)
        if match is not None and self.route is not None and not (head.chunked or head.upgrade or head.expect):
            self._before, self._after = part[: match.start(1)], part[match.end(1) :]
            self._keys = self.front.keys

    def _same_again(self, data: bytes) -> bool:
        """Most clients send the same head again and again on one connection, only with another length of the body. Then what
        was read from it and checked is still right, and the rest of it need not be parsed again.
        """
        before, after = self._before, self._after
        front, head = self.front, self.head
        if self._keys is not front.keys or not data.startswith(before):
            return False
        start = len(before)
        end = data.find(b"\r", start, start + 10)
        digits = data[start:end]
        if end < 0 or not digits.isdigit() or not data.startswith(after, end) or int(digits) > front.limits.body_bytes:
            return False
        self.began = front.now()
        self._received = 0
        head.length = int(digits)
        if head.own_id:
            head.request_id = front.new_id()
        self.keep_alive = head.keep_alive
        self._go_on(head, data[end + len(after) :])
        return True

    def _go_on(self, head: RequestHead, rest: bytes) -> None:
        """The head is in, and nothing speaks against the request."""
        if head.chunked or len(rest) < head.length:
            self._await_body(rest)
        else:
            self.state = BUSY
            if len(rest) > head.length:
                self._hold(rest[head.length :])
                rest = rest[: head.length]
            self.front.request(self, rest)

    def _refuse_at_head(self, refusal: ApiError, rest: bytes) -> None:
        """When the body is in already, the connection can stay."""
        head = self.head
        if head.chunked or len(rest) < head.length:
            self._refuse(refusal)
            return
        self.state = BUSY
        if len(rest) > head.length:
            self._hold(rest[head.length :])
        self.error(refusal, self.family)
        self.front.settle_local(self, refusal.status, refusal.code)
        self.finished()

    # --- the body -----------------------------------------------------------------------------------------------------

    def _await_body(self, rest: bytes) -> None:
        head = self.head
        refusal = self.front.reserve(self, head.length)
        if refusal is not None:
            self._refuse(refusal)
            return
        self.state = BODY
        self.deadline = self.front.now() + self.front.limits.body_grace_seconds
        if head.expect and head.http11 and not rest:
            self.transport.write(render.CONTINUE)
        if rest:
            self._read_body(rest)

    def _read_body(self, data: bytes) -> None:
        if self.head.chunked:
            self._read_chunks(data)
            return
        missing = self.head.length - self._received
        if len(data) < missing:
            self._pieces.append(data)
            self._received += len(data)
            return
        self.state = BUSY
        if len(data) > missing:
            self._hold(data[missing:])
            data = data[:missing]
        self._pieces.append(data)
        body = b"".join(self._pieces)
        self._pieces = []
        self.front.request(self, body)

    def _read_chunks(self, data: bytes) -> None:
        chunks = self._chunks
        if chunks is None:
            chunks = self._chunks = ChunkedBody()
        before = len(chunks.body)
        self._received += len(data)
        try:
            rest = chunks.feed(data)
        except ChunkError as error:
            self._refuse(ApiError(400, "bad_chunk", f"The chunked body is not valid: {error}."))
            return
        size = len(chunks.body)
        if size > self.front.limits.body_bytes:
            self._refuse(too_large(self.front.limits.body_bytes))
        elif chunks.done:
            self.state = BUSY
            if rest:
                self._hold(rest)
            body = bytes(chunks.body)
            self._chunks = None
            self.front.request(self, body)
        elif size > before:
            refusal = self.front.reserve(self, size)
            if refusal is not None:
                self._refuse(refusal)

    def body_done(self) -> None:
        """The body is not held any longer."""
        if self.reserved:
            self.front.unreserve(self)

    # --- answering ----------------------------------------------------------------------------------------------------

    @property
    def family(self) -> Family:
        return self.route.family if self.route is not None else Family.OPENAI

    def own_lines(self) -> bytes:
        """The header lines that the router adds to every answer."""
        head = self.head
        lines = b"X-Request-Id: %b\r\n" % head.request_id
        if head.origin:
            lines += self.front.cors.lines(head.origin)
        if not self.keep_alive or self.front.closing:
            self.keep_alive = False
            return lines + render.CLOSE
        return lines if head.http11 else lines + b"Connection: keep-alive\r\n"

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    def error(self, error: ApiError, family: Family) -> None:
        """Writes an error answer; :meth:`finished` comes next."""
        head = self.head
        if not head.request_id:
            head.request_id = self.front.new_id()
        body = api_errors.body(error, family, head.request_id.decode())
        extra = [self.own_lines()]
        if error.retry_after is not None:
            extra.append(b"Retry-After: %d\r\n" % max(1, round(error.retry_after + 0.5)))
        if error.status == 401:
            extra.append(b"WWW-Authenticate: Bearer\r\n")
        self.transport.write(render.answer(error.status, body, extra=extra, head_only=head.method == b"HEAD"))

    def _refuse(self, error: ApiError) -> None:
        """Answers before the request is in as a whole, then closes without cutting the answer off."""
        self.keep_alive = False
        self.error(error, self.family)
        self.front.settle_local(self, error.status, error.code)
        self.body_done()
        self._pieces = []
        self._chunks = None
        self._parser = None
        self.state = LINGER
        self.discarded = 0
        self.deadline = self.front.now() + _LINGER_SECONDS
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()

    def finished(self, now: float | None = None) -> None:
        """The answer is written: the next request, or the end."""
        if self.reserved:
            self.front.unreserve(self)
        if not self.keep_alive:
            self.transport.close()
            return
        self.state = HEAD
        self.deadline = (self.front.now() if now is None else now) + self.front.limits.keep_alive_seconds
        if self._pending:
            self.front.loop.call_soon(self._next)

    def _next(self) -> None:
        if self.state != HEAD or self._blocked or self.transport.is_closing():
            return
        data, self._pending = self._pending, b""
        if self._paused:
            self._paused = False
            self.transport.resume_reading()
        self.data_received(data)

    def abort(self) -> None:
        """Cuts the connection, so that the client cannot take what it has for the whole."""
        self.transport.abort()

    # --- time ---------------------------------------------------------------------------------------------------------

    def check(self, now: float) -> None:
        """Applies the limits. Called once or twice a second for each connection."""
        if now < self.deadline or self.state in (BUSY, TUNNEL):
            return
        if self.state == LINGER:
            self.transport.abort()
        elif self.state == HEAD:
            if self._parser is None:
                self.transport.close()
            else:
                self._refuse(ApiError(408, "head_timeout", "The request's head did not arrive in time."))
        else:
            limits = self.front.limits
            late = now - self.deadline
            if self._received < late * limits.body_bytes_per_second or late > 3600:
                rate = limits.body_bytes_per_second
                self._refuse(ApiError(408, "body_timeout", f"The body arrives at less than {rate} bytes per second."))


def too_large(limit: int) -> ApiError:
    return ApiError(413, "body_too_large", f"The body is larger than {limit} bytes ({limit / 2**20:g} MiB); send less.")


def _cause(error: Exception) -> str:
    return str(error).strip().rstrip(".")[:120]
