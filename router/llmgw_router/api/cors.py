"""Cross-origin answers for browsers. Pure. Credentials here are header fields, never cookies, so ``*`` gives nothing away."""

from __future__ import annotations

import re
from collections.abc import Sequence

_METHODS = b"GET, HEAD, POST, OPTIONS"
_FIELD_NAMES = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, -]{0,2048}")
_EXPOSED = b"Access-Control-Expose-Headers: X-Request-Id, Retry-After\r\n"


class Cors:
    def __init__(self, origins: Sequence[str]) -> None:
        self._any = "*" in origins
        self._origins = frozenset(each.rstrip("/").encode() for each in origins)

    def lines(self, origin: bytes) -> bytes:
        """For an answer to a request that names its origin."""
        if self._any:
            return b"Access-Control-Allow-Origin: *\r\n" + _EXPOSED
        if origin in self._origins:
            return b"Access-Control-Allow-Origin: %b\r\nVary: Origin\r\n" % origin + _EXPOSED
        return b"Vary: Origin\r\n" if self._origins else b""

    def preflight(self, headers_wanted: bytes) -> list[bytes]:
        """More lines for the answer to a preflight request."""
        wanted = headers_wanted if _FIELD_NAMES.fullmatch(headers_wanted) is not None else b""
        lines = [b"Access-Control-Allow-Methods: %b\r\n" % _METHODS, b"Access-Control-Max-Age: 86400\r\n"]
        if wanted:
            lines.append(b"Access-Control-Allow-Headers: %b\r\n" % wanted)
        return lines


ALLOW = b"Allow: %b\r\n" % _METHODS
