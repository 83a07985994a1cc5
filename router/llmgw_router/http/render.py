"""Answers that the router makes itself, as bytes. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from llmgw_router.http.headers import STATUS_LINES

JSON = b"application/json"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
CLOSE = b"Connection: close\r\n"


def answer(
    status: int,
    body: bytes,
    *,
    content_type: bytes = JSON,
    extra: Sequence[bytes] = (),
    close: bool = False,
    head_only: bool = False,
) -> bytes:
    """A whole answer; ``extra`` are finished header lines with their CRLF."""
    parts = [STATUS_LINES[status], *extra]
    if status != 204:
        parts.append(b"Content-Type: %b\r\nContent-Length: %d\r\n" % (content_type, len(body)))
    if close:
        parts.append(CLOSE)
    parts.append(b"\r\n")
    if not head_only:
        parts.append(body)
    return b"".join(parts)


def chunk(data: bytes) -> bytes:
    """``data`` (not empty) as one chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)
