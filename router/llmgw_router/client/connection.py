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
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol, cast

import httptools

from llmgw_router.api import errors as api_errors
from llmgw_router.api.routes import Family, Route
from llmgw_router.errors import ApiError
from llmgw_router.http import headers, render
from llmgw_router.http.chunked import ChunkedBody, ChunkError

if TYPE_CHECKING:
    from llmgw_router.client.front import Front
    from llmgw_router.relay.exchange import Exchange

_PIPELINE_LIMIT = 65_536
_LINGER_SECONDS = 5.0
_LINGER_BYTES = 128 * 2**20
_HOST = re.compile(rb"[A-Za-z0-9._~%!$&'()*+,;=:\[\]-]{0,255}")
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:+/=@-]{1,128}")
_PLAIN_CONNECTION = frozenset({b"keep-alive", b"close", b"upgrade", b"keep-alive, upgrade", b"te", b"close, te"})


class State(IntEnum):
    HEAD = 0
    BODY = 1
    BUSY = 2
    LINGER = 3
    TUNNEL = 4

    @property
    def busy(self) -> bool:
        """In the middle of a request."""
        return self in (State.BODY, State.BUSY, State.TUNNEL)


class Tunnel(Protocol):
    """Who owns the bytes after an upgrade."""

    def client_data(self, data: bytes) -> None: ...
    def client_gone(self) -> None: ...
    def client_writable(self, writable: bool) -> None: ...


class ClientConnection(asyncio.Protocol):
    __slots__ = (
        "_parser",
        "accept",
        "api_key",
        "authorization",
        "began",
        "body_size",
        "chunked_in",
        "chunks",
        "coding",
        "connection_value",
        "content_type",
        "deadline",
        "discarded",
        "exchange",
        "expect",
        "fields_seen",
        "forward",
        "front",
        "head_complete",
        "head_size",
        "headers_wanted",
        "hosts",
        "http11",
        "keep_alive",
        "key_name",
        "length",
        "method",
        "need",
        "origin",
        "paused",
        "peer",
        "pending",
        "pieces",
        "priority",
        "protocols",
        "request_id",
        "reserved",
        "route",
        "session",
        "state",
        "tail",
        "target",
        "too_many",
        "transport",
        "tunnel",
        "upgrade",
    )

    transport: asyncio.Transport

    def __init__(self, front: Front) -> None:
        self.front = front
        self.state = State.HEAD
        self.exchange: Exchange | None = None
        self.tunnel: Tunnel | None = None
        self.pending = b""
        self.paused = False
        self.peer = ""
        self.reserved = 0
        self.deadline = 0.0
        self.request_id = b""
        self.route: Route | None = None
        self.keep_alive = False
        self.http11 = True
        self.origin = b""
        self.began = 0.0
        self._parser: httptools.HttpRequestParser | None = None

    def _begin(self, now: float) -> None:
        """A new request: forgets the one before."""
        self._parser = httptools.HttpRequestParser(self)
        self.began = now
        self.deadline = now + self.front.limits.head_seconds
        self.tail = b""
        self.head_size = 0
        self.head_complete = False
        self.target = b""
        self.method = b""
        self.fields_seen = 0
        self.hosts = 0
        self.too_many = False
        self.forward: list[bytes] = []
        self.length = 0
        self.coding = b""
        self.chunked_in = False
        self.chunks: ChunkedBody | None = None
        self.connection_value = b""
        self.authorization = b""
        self.api_key = b""
        self.content_type = b""
        self.expect = b""
        self.request_id = b""
        self.origin = b""
        self.upgrade = b""
        self.session = b""
        self.priority = b""
        self.headers_wanted = b""
        self.protocols = b""
        self.accept = b""
        self.pieces: list[bytes] = []
        self.body_size = 0
        self.need = 0
        self.key_name = ""
        self.route = None

    # --- asyncio.Protocol ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.peer = peer[0] if isinstance(peer, tuple) else ""
        self.deadline = self.front.now() + self.front.limits.head_seconds
        refusal = self.front.joined(self)
        if refusal is not None:
            self.keep_alive = False
            self._begin(self.front.now())
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
        self._writable(False)

    def resume_writing(self) -> None:
        self._writable(True)

    def _writable(self, writable: bool) -> None:
        if self.exchange is not None:
            self.exchange.client_writable(writable)
        elif self.tunnel is not None:
            self.tunnel.client_writable(writable)

    def data_received(self, data: bytes) -> None:
        state = self.state
        if state == State.HEAD:
            self._read_head(data)
        elif state == State.BODY:
            self._read_body(data)
        elif state == State.BUSY:
            self._hold(data)
        elif state == State.TUNNEL:
            if self.tunnel is not None:
                self.tunnel.client_data(data)
        else:
            self.discarded += len(data)
            if self.discarded > _LINGER_BYTES:
                self.transport.abort()

    def _hold(self, data: bytes) -> None:
        """Pipelined: it waits its turn, and too much of it stops the reading."""
        self.pending += data
        if len(self.pending) > _PIPELINE_LIMIT and not self.paused:
            self.paused = True
            self.transport.pause_reading()

    # --- the head -----------------------------------------------------------------------------------------------------

    def _read_head(self, data: bytes) -> None:
        while data:
            parser = self._parser
            if parser is None:
                self._begin(self.front.now())
                parser = self._parser
                assert parser is not None
            tail = self.tail
            joined = tail + data if tail else data
            end = joined.find(b"\r\n\r\n")
            if end < 0:
                part, rest = data, b""
                self.tail = joined[-3:]
            else:
                end += 4 - len(tail)
                part, rest = data[:end], data[end:]
                self.tail = b""
            self.head_size += len(part)
            if self.head_size > self.front.limits.head_bytes:
                limit = self.front.limits.head_bytes
                self._refuse(
                    ApiError(
                        431, "head_too_large", f"The header fields are longer than {limit} bytes; send fewer or shorter ones."
                    )
                )
                return
            try:
                parser.feed_data(part)
            except httptools.HttpParserUpgrade:
                pass
            except httptools.HttpParserError as error:
                self._refuse(ApiError(400, "bad_request", f"This is not a valid HTTP/1.1 request: {_cause(error)}."))
                return
            if self.head_complete:
                self._head_done(parser, rest)
                return
            data = rest

    def on_url(self, url: bytes) -> None:
        if not self.head_complete:
            self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.head_complete:
            # A trailer of a chunked body.
            return
        self.fields_seen += 1
        lower = name.lower()
        action = headers.REQUEST.get(lower)
        if action is None:
            if lower == self.front.session_header:
                self.session = value
            if not lower.startswith(b"x-stainless-"):
                self.forward.append(b"%b: %b\r\n" % (name, value))
        elif action:
            self._special(action, value)

    def _special(self, action: int, value: bytes) -> None:
        if action == headers.LENGTH:
            self.length = int(value)
        elif action == headers.TYPE:
            self.content_type = value
        elif action == headers.HOST:
            self.hosts += 1
            if _HOST.fullmatch(value) is None:
                self.hosts += 2
        elif action == headers.BEARER:
            self.authorization = value
        elif action == headers.ACCEPT:
            self.accept = value
        elif action == headers.CONNECTION:
            self.connection_value += b"," + value if self.connection_value else value
        elif action == headers.REQUEST_ID:
            if _REQUEST_ID.fullmatch(value) is not None:
                self.request_id = value
        elif action == headers.API_KEY:
            self.api_key = value
        elif action == headers.CODING:
            self.coding += b"," + value if self.coding else value
        elif action == headers.EXPECT:
            self.expect = value
        elif action == headers.ORIGIN:
            self.origin = value
        elif action == headers.UPGRADE:
            self.upgrade = value
        elif action == headers.PRIORITY:
            self.priority = value
        elif action == headers.HEADERS_WANTED:
            self.headers_wanted = value
        elif action == headers.PROTOCOLS:
            self.protocols = value

    def on_headers_complete(self) -> None:
        self.head_complete = True

    def _head_done(self, parser: httptools.HttpRequestParser, rest: bytes) -> None:
        version = parser.get_http_version()
        self.http11 = version == "1.1"
        self.keep_alive = parser.should_keep_alive()
        self.method = parser.get_method()
        if not self.request_id:
            self.request_id = self.front.new_id()
        refusal = self._framing(version)
        if refusal is not None:
            self._refuse(refusal)
            return
        if self.connection_value and self.connection_value.lower() not in _PLAIN_CONNECTION:
            self._drop_hop_by_hop()
        self.need = self.length
        refusal = self.front.head(self)
        if self.state == State.TUNNEL:
            if rest and self.tunnel is not None:
                self.tunnel.client_data(rest)
            return
        if refusal is not None:
            if self.chunked_in or len(rest) < self.length:
                self._refuse(refusal)
                return
            self.state = State.BUSY
            if len(rest) > self.length:
                self.pending = rest[self.length :]
            self.error(refusal, self.route.family if self.route is not None else Family.OPENAI)
            self.front.settle_local(self, refusal.status, refusal.code)
            self.finished()
            return
        if self.chunked_in:
            self._await_body(rest)
        elif len(rest) == self.need:
            self.state = State.BUSY
            self.front.request(self, rest)
        elif len(rest) > self.need:
            self.state = State.BUSY
            self._hold(rest[self.need :])
            self.front.request(self, rest[: self.need])
        else:
            self._await_body(rest)

    def _framing(self, version: str) -> ApiError | None:
        """What the parser lets through and this router does not."""
        if version not in ("1.1", "1.0"):
            return ApiError(505, "http_version", "This server speaks HTTP/1.1 and HTTP/1.0.")
        if self.fields_seen > self.front.limits.header_fields:
            return ApiError(431, "too_many_headers", f"More than {self.front.limits.header_fields} header fields; send fewer.")
        if self.hosts != 1 and (self.http11 or self.hosts > 1):
            return ApiError(400, "bad_host", "A request has exactly one Host field with a host name in it.")
        if not self.target.startswith(b"/") and not (self.target == b"*" and self.method == b"OPTIONS"):
            return ApiError(400, "bad_target", "The request target must be a path, for example /v1/models.")
        if b"#" in self.target:
            return ApiError(400, "bad_target", "The request target must not have a fragment.")
        if self.coding:
            if self.coding.strip().lower() != b"chunked" or not self.http11:
                return ApiError(400, "bad_transfer_encoding", "The only transfer coding here is chunked, in HTTP/1.1.")
            self.chunked_in = True
        if self.expect and self.expect.lower() != b"100-continue":
            return ApiError(417, "bad_expectation", "The only expectation known here is 100-continue.")
        return None

    def _drop_hop_by_hop(self) -> None:
        """Takes out the fields that Connection names."""
        named = {each.strip().lower() for each in self.connection_value.split(b",")}
        self.forward = [line for line in self.forward if line.partition(b":")[0].lower() not in named]

    # --- the body -----------------------------------------------------------------------------------------------------

    def _await_body(self, rest: bytes) -> None:
        refusal = self.front.reserve(self, self.length)
        if refusal is not None:
            self._refuse(refusal)
            return
        self.state = State.BODY
        self.deadline = self.front.now() + self.front.limits.body_grace_seconds
        if self.expect and self.http11 and not rest:
            self.transport.write(render.CONTINUE)
        if rest:
            self._read_body(rest)

    def _read_body(self, data: bytes) -> None:
        if self.chunked_in:
            self._read_chunks(data)
            return
        missing = self.need - self.body_size
        if len(data) < missing:
            self.pieces.append(data)
            self.body_size += len(data)
            return
        self.state = State.BUSY
        if len(data) > missing:
            self._hold(data[missing:])
            data = data[:missing]
        self.pieces.append(data)
        body = b"".join(self.pieces)
        self.pieces = []
        self.front.request(self, body)

    def _read_chunks(self, data: bytes) -> None:
        chunks = self.chunks
        if chunks is None:
            chunks = self.chunks = ChunkedBody()
        before = self.body_size
        self.need += len(data)
        try:
            rest = chunks.feed(data)
        except ChunkError as error:
            self._refuse(ApiError(400, "bad_chunk", f"The chunked body is not valid: {error}."))
            return
        size = self.body_size = len(chunks.body)
        if size > self.front.limits.body_bytes:
            self._refuse(too_large(self.front.limits.body_bytes))
        elif chunks.done:
            self.state = State.BUSY
            if rest:
                self._hold(rest)
            body = bytes(chunks.body)
            self.chunks = None
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

    def own_lines(self) -> bytes:
        """The header lines that the router adds to every answer."""
        lines = b"X-Request-Id: %b\r\n" % self.request_id
        if self.origin:
            lines += self.front.cors.lines(self.origin)
        if not self.keep_alive or self.front.closing:
            self.keep_alive = False
            return lines + render.CLOSE
        return lines if self.http11 else lines + b"Connection: keep-alive\r\n"

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    def error(self, error: ApiError, family: Family) -> None:
        """Writes an error answer; :meth:`finished` comes next."""
        if not self.request_id:
            self.request_id = self.front.new_id()
        body = api_errors.body(error, family, self.request_id.decode())
        extra = [self.own_lines()]
        if error.retry_after is not None:
            extra.append(b"Retry-After: %d\r\n" % max(1, round(error.retry_after + 0.5)))
        if error.status == 401:
            extra.append(b"WWW-Authenticate: Bearer\r\n")
        self.transport.write(render.answer(error.status, body, extra=extra, head_only=self.method == b"HEAD"))

    def _refuse(self, error: ApiError) -> None:
        """Answers before the request is in as a whole, then closes without cutting the answer off."""
        self.keep_alive = False
        family = self.route.family if self.route is not None else Family.OPENAI
        self.error(error, family)
        self.front.settle_local(self, error.status, error.code)
        self.body_done()
        self.pieces = []
        self.chunks = None
        self._parser = None
        self.state = State.LINGER
        self.discarded = 0
        self.deadline = self.front.now() + _LINGER_SECONDS
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()

    def finished(self) -> None:
        """The answer is written: the next request, or the end."""
        self._parser = None
        self.body_done()
        if not self.keep_alive:
            self.transport.close()
            return
        self.state = State.HEAD
        self.deadline = self.front.now() + self.front.limits.keep_alive_seconds
        if self.pending:
            self.front.loop.call_soon(self._next)

    def _next(self) -> None:
        if self.state != State.HEAD or self.transport.is_closing():
            return
        data, self.pending = self.pending, b""
        if self.paused:
            self.paused = False
            self.transport.resume_reading()
        self.data_received(data)

    def abort(self) -> None:
        """Cuts the connection, so that the client cannot take what it has for the whole."""
        self.transport.abort()

    # --- time ---------------------------------------------------------------------------------------------------------

    def check(self, now: float) -> None:
        """Applies the limits. Called once or twice a second for each connection."""
        if now < self.deadline or self.state in (State.BUSY, State.TUNNEL):
            return
        if self.state == State.LINGER:
            self.transport.abort()
        elif self.state == State.HEAD:
            if self._parser is None:
                self.transport.close()
            else:
                self._refuse(ApiError(408, "head_timeout", "The request's head did not arrive in time."))
        else:
            limits = self.front.limits
            late = now - self.deadline
            received = self.need if self.chunked_in else self.body_size
            if received < late * limits.body_bytes_per_second or late > 3600:
                rate = limits.body_bytes_per_second
                self._refuse(ApiError(408, "body_timeout", f"The body arrives at less than {rate} bytes per second."))


def too_large(limit: int) -> ApiError:
    return ApiError(413, "body_too_large", f"The body is larger than {limit} bytes ({limit / 2**20:g} MiB); send less.")


def _cause(error: Exception) -> str:
    return str(error).strip().rstrip(".")[:120]
