"""Takes the chunked framing off a request's body, strictly and within bounds. Pure.

Chunk extensions and trailers are read over and dropped. httptools could do this too, but would read on into a request that
follows, and refuses trailers that are harmless once they are dropped.
"""

from __future__ import annotations

import re

_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[\t -~\x80-\xff]*)?")
_TRAILER = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~\x80-\xff]*")
_LINE_LIMIT = 1024
_EXTENSION_LIMIT = 4096
_TRAILER_LIMIT = 8192


class ChunkError(ValueError):
    """Not a chunked body, or more framing than anybody needs."""


class ChunkedBody:
    __slots__ = ("_extensions", "_left", "_line", "_state", "_trailers", "body", "done")

    def __init__(self) -> None:
        self.body = bytearray()
        self.done = False
        self._state = "size"
        self._line = b""
        """The beginning of a line whose end has not come."""
        self._left = 0
        """Bytes of the current chunk that are still to come."""
        self._extensions = 0
        self._trailers = 0

    def feed(self, data: bytes) -> bytes:
        """Takes bytes as they come. Returns what follows the body, once it is ``done``; before that, nothing.

        Raises:
            ChunkError: with the cause.
        """
        at = 0
        if self._line:
            data, self._line = self._line + data, b""
        size = len(data)
        while at < size and not self.done:
            if self._state == "data":
                part = data[at : at + self._left]
                self.body += part
                self._left -= len(part)
                at += len(part)
                if not self._left:
                    self._state = "end"
                continue
            end = data.find(b"\n", at)
            if end < 0:
                self._keep(data[at:])
                return b""
            if data[end - 1 : end] != b"\r" or end == at:
                raise ChunkError("a line does not end with CR LF")
            self._take(data[at : end - 1])
            at = end + 1
        return data[at:] if self.done else b""

    def _keep(self, line: bytes) -> None:
        if len(line) > _LINE_LIMIT:
            raise ChunkError("a line of the framing is too long")
        if self._state == "end" and line != b"\r":
            raise ChunkError("a chunk is longer than its size says")
        self._line = line

    def _take(self, line: bytes) -> None:
        """One line, without its end."""
        if len(line) > _LINE_LIMIT:
            raise ChunkError("a line of the framing is too long")
        if self._state == "end":
            if line:
                raise ChunkError("a chunk is longer than its size says")
            self._state = "size"
        elif self._state == "size":
            match = _SIZE.fullmatch(line)
            if match is None:
                raise ChunkError("a chunk's size is not a hexadecimal number")
            self._extensions += len(line) - len(match[1])
            if self._extensions > _EXTENSION_LIMIT:
                raise ChunkError("the chunk extensions are too long")
            self._left = int(match[1], 16)
            self._state = "data" if self._left else "trailer"
        elif not line:
            self.done = True
        else:
            self._trailers += len(line)
            if self._trailers > _TRAILER_LIMIT or _TRAILER.fullmatch(line) is None:
                raise ChunkError("the trailer is malformed or too long")
