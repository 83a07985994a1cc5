"""Parts of an answer on its way to the client: its head, made anew, and a bounded copy of a JSON body for reading its usage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmgw_router.engine.connection import EngineConnection
from llmgw_router.http.headers import STATUS_LINES
from llmgw_router.relay.usage import Usage

if TYPE_CHECKING:
    from llmgw_router.client.connection import ClientConnection

_COPY_LIMIT = 1_048_576
_NO_BODY = frozenset({204, 304})


def render_head(
    connection: EngineConnection, client: ClientConnection, *, stream: bool, chunked: bool, whole: int | None
) -> bytes:
    """The head for the client. ``whole`` is the length of the body, when all of it is there already.

    An answer to HTTP/1.0 whose length is not known ends with the connection: that client knows no chunks.
    """
    length = None if stream else connection.length if connection.length is not None else whole
    parts = [STATUS_LINES[connection.status], *connection.head]
    if connection.status not in _NO_BODY:
        if length is not None:
            parts.append(b"Content-Length: %d\r\n" % length)
        elif chunked:
            parts.append(b"Transfer-Encoding: chunked\r\n")
        elif not client.head.http11:
            client.keep_alive = False
    parts.append(client.own_lines())
    parts.append(b"\r\n")
    return b"".join(parts)


class JsonCopy:
    """The body as it passes by; of a very long one only both ends."""

    __slots__ = ("_kept", "_parts", "_seen")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._kept = 0
        self._seen = 0

    def add(self, data: bytes) -> None:
        parts = self._parts
        parts.append(data)
        self._seen += len(data)
        self._kept += len(data)
        while self._kept > _COPY_LIMIT and len(parts) > 2:
            self._kept -= len(parts.pop(1))

    def read_into(self, usage: Usage) -> None:
        parts = self._parts
        document = parts[0] if len(parts) == 1 else b"".join(parts)
        if self._kept == self._seen:
            usage.read_answer(document)
        else:
            usage.scan(document)
