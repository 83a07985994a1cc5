"""One connection to an engine: sends a request, parses the answer's framing, hands its bytes to the exchange.

An answer's bytes reach the exchange once per read, joined, with the chunk framing taken off. The engine is trusted to mean well
and not to be right: whatever is not HTTP/1.1 ends the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, cast

import httptools

from llmgw_router.engine.known import KnownAnswer, learn
from llmgw_router.errors import BadAnswerError, BrokenError, EngineError
from llmgw_router.http import headers

if TYPE_CHECKING:
    from llmgw_router.table.replica import Replica

MAX_HEAD = 65_536
_LEARN_EVERY = 8
"""Heads of some engines never repeat: most of them tell the time in seconds, a few give each answer an id."""


class Owner(Protocol):
    """The exchange, as an engine's connection sees it."""

    def engine_data(self, connection: EngineConnection, data: bytes, complete: bool) -> None:
        """Bytes of the answer's body, perhaps none; the head is known. After ``complete`` the connection is free again."""
        ...

    def engine_lost(self, connection: EngineConnection, error: EngineError) -> None:
        """The answer will not be completed."""
        ...

    def engine_writable(self, writable: bool) -> None:
        """The engine reads too slowly, or again."""
        ...


class EngineConnection(asyncio.Protocol):
    __slots__ = (
        "between",
        "chunked",
        "closing",
        "complete",
        "content_type",
        "fed",
        "head",
        "head_done",
        "idle_since",
        "keep",
        "length",
        "may_upgrade",
        "on_body",
        "owner",
        "parser",
        "pieces",
        "replica",
        "requests",
        "status",
        "take_chunk",
        "transport",
        "upgraded",
        "whole",
    )

    transport: asyncio.Transport

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.owner: Owner | None = None
        self.idle_since = 0.0
        self.requests = 0
        """Sent on this connection before the current one."""
        self.closing = False
        self.upgraded = False
        self.may_upgrade = False
        self.pieces: list[bytes] = []
        """Of the body, from one read."""
        self.on_body = self.pieces.append
        """Called by httptools for each chunk; nothing is quicker."""
        self.parser: Any = httptools.HttpResponseParser(self)
        """For all answers; it begins anew after each."""
        self._reset()

    def _reset(self) -> None:
        self.head: list[bytes] = []
        """Finished lines of fields that pass to the client."""
        self.content_type = b""
        self.status = 0
        self.length: int | None = None
        self.chunked = False
        self.keep = True
        self.take_chunk: Callable[[bytes], bool] | None = None
        """Of an exchange that can pass chunks on as they are: is shown what comes between two chunks, says whether it took it.
        Only whole chunks may be taken, for the parser must not notice.
        """
        self.between = False
        """The parser stands between two chunks."""
        self.fed = 0
        self.head_done = False
        self.complete = False
        self.whole = 0
        """How many of the pieces belong to the answer, once it is complete; what follows nobody asked for."""

    # --- used by the exchange -----------------------------------------------------------------------------------------

    def send(self, owner: Owner, data: bytes, *, upgrade: bool = False) -> None:
        """Sends a whole request; the answer goes to ``owner``. ``upgrade``: it asks for another protocol."""
        self.owner = owner
        self.may_upgrade = upgrade
        self.transport.write(data)

    def release(self, now: float) -> None:
        """The answer is complete: back to the pool, or closed when it cannot be used again."""
        self.owner = None
        replica = self.replica
        if not self.keep or self.closing or replica.gone:
            self.close()
            return
        self._reset()
        self.requests += 1
        self.idle_since = now
        replica.idle.append(self)

    def close(self) -> None:
        """Ends the connection at once, so that the engine notices."""
        self.owner = None
        self.take_chunk = None
        if not self.closing:
            self.closing = True
            self.transport.abort()

    def abandon(self) -> None:
        """Nobody waits for this connection any more, and perhaps it is not even made yet."""
        self.closing = True
        if self in self.replica.connections:
            self.transport.abort()

    # --- asyncio.Protocol ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.replica.connections.add(self)
        if self.closing:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closing = True
        # It refers to this object, and a cycle would outlive its use.
        self.parser = None
        self.take_chunk = None
        self.replica.connections.discard(self)
        if self.owner is None:
            if self in self.replica.idle:
                self.replica.idle.remove(self)
            return
        owner, self.owner = self.owner, None
        owner.engine_lost(self, BrokenError(f"engine {self.replica.id} closed the connection: {exc or 'end of stream'}"))

    def eof_received(self) -> None:
        owner = self.owner
        if owner is None or not self.head_done or self.complete or self.upgraded:
            return
        if self.length is None and not self.chunked:
            # An answer without a length ends with the connection.
            self.complete = True
            self.keep = False
            owner.engine_data(self, b"", True)

    def pause_writing(self) -> None:
        if self.owner is not None:
            self.owner.engine_writable(False)

    def resume_writing(self) -> None:
        if self.owner is not None:
            self.owner.engine_writable(True)

    def data_received(self, data: bytes) -> None:
        owner = self.owner
        if owner is None:
            # Nobody asked for anything.
            self.close()
            return
        if self.upgraded:
            owner.engine_data(self, data, False)
            return
        take = self.take_chunk
        if take is not None and self.between and take(data):
            return
        whole = not self.head_done and not self.fed
        if whole:
            known = self.replica.answer
            if known is not None:
                body = known.body_of(data)
                if body is not None:
                    self._take(known, body)
                    owner.engine_data(self, body, True)
                    return
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self.status != 101 or not self.may_upgrade:
                self._bad(owner, "it changed the protocol without being asked")
                return
            self.upgraded = True
            owner.engine_data(self, data[upgrade.args[0] :], False)
            return
        except httptools.HttpParserError as error:
            if self.head_done and self.pieces:
                # What came before the fault was good.
                body = b"".join(self.pieces)
                self.pieces.clear()
                owner.engine_data(self, body, False)
            if self.owner is owner:
                self._bad(owner, str(error))
            return
        if not self.head_done:
            self.fed += len(data)
            if self.fed > MAX_HEAD:
                self._bad(owner, f"its head is longer than {MAX_HEAD} bytes")
            return
        pieces = self.pieces
        if self.complete:
            del pieces[self.whole :]
        if not pieces:
            body = b""
        else:
            body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            if take is not None:
                # Within a chunk, what came would end like the piece.
                self.between = data.endswith(b"\n\n\r\n") and pieces[-1].endswith(b"\n\n")
            pieces.clear()
            if whole and self.complete:
                self._learn(data, len(body))
        owner.engine_data(self, body, self.complete)

    def _take(self, known: KnownAnswer, body: bytes) -> None:
        """A whole answer came, with a head that was parsed before."""
        self.status = 200
        self.head = known.lines
        self.content_type = known.content_type
        self.length = len(body)
        self.head_done = self.complete = True

    def _learn(self, data: bytes, size: int) -> None:
        """A whole answer came in one read, and its head was parsed."""
        replica = self.replica
        replica.misses += 1
        if replica.misses % _LEARN_EVERY == 1 and self.status == 200 and self.length == size and self.keep:
            replica.answer = learn(data, size, self.head, self.content_type)

    def _bad(self, owner: Owner, cause: str) -> None:
        self.close()
        owner.engine_lost(self, BadAnswerError(f"engine {self.replica.id} does not speak HTTP/1.1: {cause}"))

    # One that is missing costs httptools an exception.
    on_url = on_status = on_chunk_header = on_chunk_complete = None

    # --- httptools ----------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self.complete:
            # More than was asked for: what came so far counts, and the connection is not used again.
            self.keep = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.head_done:
            return
        action = headers.RESPONSE.get(name.lower())
        if action is None:
            self.head.append(b"%b: %b\r\n" % (name, value))
        elif action == headers.R_TYPE:
            self.content_type = value
            self.head.append(b"Content-Type: %b\r\n" % value)
        elif action == headers.R_LENGTH:
            self.length = int(value)
        elif action == headers.R_CODING:
            self.chunked = True

    def on_headers_complete(self) -> None:
        if self.head_done:
            return
        status = self.parser.get_status_code()
        if status < 200 and status != 101:
            # 100 Continue and the like: the answer proper follows.
            self.head.clear()
            return
        self.status = status
        self.keep = self.parser.should_keep_alive()
        self.head_done = True

    def on_message_complete(self) -> None:
        if self.head_done and not self.complete:
            self.complete = True
            self.whole = len(self.pieces)
