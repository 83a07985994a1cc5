"""Answers whose heads are known: an engine sends the same again and again, but for the length and perhaps the time. Pure."""

from __future__ import annotations

import re

_LENGTH = re.compile(rb"\r\ncontent-length: ?(\d{1,9})\r\n", re.IGNORECASE)


class KnownAnswer:
    """What was read from a head once; still right for each that differs in nothing but the digits of its length."""

    __slots__ = ("_after", "_before", "content_type", "lines")

    def __init__(self, before: bytes, after: bytes, lines: list[bytes], content_type: bytes) -> None:
        self._before = before
        self._after = after
        self.lines = lines
        """Finished lines of fields that pass to the client."""
        self.content_type = content_type

    def body_of(self, data: bytes) -> bytes | None:
        """The body, when ``data`` is one whole answer with this head, and nothing more."""
        before, after = self._before, self._after
        if not data.startswith(before):
            return None
        start = len(before)
        end = data.find(b"\r", start, start + 10)
        digits = data[start:end]
        if end < 0 or not digits.isdigit() or not data.startswith(after, end):
            return None
        begin = end + len(after)
        return data[begin:] if int(digits) == len(data) - begin else None


def learn(data: bytes, size: int, lines: list[bytes], content_type: bytes) -> KnownAnswer | None:
    """From a whole answer with a body of ``size`` bytes that was found good; None when it is not of the kind that repeats."""
    head = data[: len(data) - size]
    match = _LENGTH.search(head)
    if match is None or head.lower().count(b"content-length") != 1 or not head.endswith(b"\r\n\r\n"):
        return None
    return KnownAnswer(head[: match.start(1)], head[match.end(1) :], lines, content_type)
