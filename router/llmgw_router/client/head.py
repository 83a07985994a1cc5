"""The head of one request, as the strict parser of httptools tells it, and what this router demands of it beyond that. Pure.

Only fields that the router reads or that engines get are kept; names and values never become a dictionary.
"""

from __future__ import annotations

import re

from llmgw_router.config import Limits
from llmgw_router.errors import ApiError
from llmgw_router.http import headers

_HOST = re.compile(rb"[A-Za-z0-9._~%!$&'()*+,;=:\[\]-]{0,255}")
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:+/=@-]{1,128}")
_PASS = headers.PASS
_FIELDS = headers.REQUEST


class RequestHead:
    """Filled by a parser; attributes that no field sets keep the defaults of the class, so a new one costs little."""

    complete = False
    method = b""
    target = b""
    path = b""
    query = b""
    http11 = True
    fields = 0
    hosts = 0
    length = 0
    """Content-Length; 0 without."""
    chunked = False
    request_id = b""
    """The client's, when it is fit to be passed on; else set by the router."""
    authorization = b""
    api_key = b""
    content_type = b""
    accept = b""
    origin = b""
    session = b""
    upgrade = b""
    expect = b""
    priority = b""
    headers_wanted = b""
    protocols = b""
    _connection = b""
    _coding = b""

    own_id = False
    """The router gave the request its id."""
    keep_alive = False
    passed = b""
    """Finished lines of the fields that engines get, once the head is checked."""

    # httptools asks for each of these; one that is missing costs it an exception.
    on_message_begin = on_status = on_body = on_message_complete = on_chunk_header = on_chunk_complete = None

    def __init__(self, session_header: bytes) -> None:
        self._session_header = session_header
        self._lines: list[bytes] = []

    # --- httptools ----------------------------------------------------------------------------------------------------

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields += 1
        lower = name.lower()
        action = _FIELDS.get(lower, _PASS)
        if action == _PASS:
            if lower == self._session_header:
                self.session = value
            if not lower.startswith(b"x-stainless-"):
                self._lines.append(b"%b: %b\r\n" % (name, value))
        elif action == headers.LENGTH:
            self.length = int(value)
        elif action == headers.TYPE:
            self.content_type = value
        elif action == headers.HOST:
            self.hosts += 1 if _HOST.fullmatch(value) is not None else 2
        elif action == headers.BEARER:
            self.authorization = value
        elif action:
            self._rare(action, value)

    def _rare(self, action: int, value: bytes) -> None:
        if action == headers.CONNECTION:
            self._connection += b"," + value if self._connection else value
        elif action == headers.CODING:
            self._coding += b"," + value if self._coding else value
        elif action == headers.REQUEST_ID:
            if _REQUEST_ID.fullmatch(value) is not None:
                self.request_id = value
        else:
            setattr(self, headers.KEPT_AS[action], value)

    def on_headers_complete(self) -> None:
        self.complete = True

    # --- what the parser lets through and this router does not ----------------------------------------------------------

    def check(self, version: str, limits: Limits) -> ApiError | None:
        """To be called once, when the head is complete. Returns why it is refused."""
        self.http11 = version == "1.1"
        if version not in ("1.1", "1.0"):
            return ApiError(505, "http_version", "This server speaks HTTP/1.1 and HTTP/1.0.")
        if self.fields > limits.header_fields:
            return ApiError(431, "too_many_headers", f"More than {limits.header_fields} header fields; send fewer.")
        if self.hosts != 1 and (self.http11 or self.hosts > 1):
            return ApiError(400, "bad_host", "A request has exactly one Host field with a host name in it.")
        target = self.target
        if not target.startswith(b"/") and not (target == b"*" and self.method == b"OPTIONS"):
            return ApiError(400, "bad_target", "The request target must be a path, for example /v1/models.")
        if b"#" in target:
            return ApiError(400, "bad_target", "The request target must not have a fragment.")
        if self._coding:
            if self._coding.strip().lower() != b"chunked" or not self.http11:
                return ApiError(400, "bad_transfer_encoding", "The only transfer coding here is chunked, in HTTP/1.1.")
            self.chunked = True
        if self.expect and self.expect.lower() != b"100-continue":
            return ApiError(417, "bad_expectation", "The only expectation known here is 100-continue.")
        self.keep_alive = self.http11
        if self._connection:
            self._connection_tokens()
        if b"?" in target:
            self.path, _, self.query = target.partition(b"?")
        else:
            self.path = target
        if self.content_type:
            self._lines.append(b"Content-Type: %b\r\n" % self.content_type)
        if self.accept:
            self._lines.append(b"Accept: %b\r\n" % self.accept)
        self.passed = b"".join(self._lines)
        return None

    def _connection_tokens(self) -> None:
        """Whether the client stays, and which fields are for this hop only. Asked of httptools after a request without a body,
        the first is forgotten already.
        """
        named = {each.strip() for each in self._connection.lower().split(b",")}
        self.keep_alive = b"close" not in named and (self.http11 or b"keep-alive" in named)
        self._lines = [line for line in self._lines if line.partition(b":")[0].lower() not in named]
