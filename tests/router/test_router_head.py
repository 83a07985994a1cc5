"""Client connections driven by hand: framing, and heads that repeat."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw_router.api.cors import Cors
from llmgw_router.api.routes import RELAYED
from llmgw_router.client.connection import HEAD, LINGER, ClientConnection
from llmgw_router.client.front import Front
from llmgw_router.config import Limits
from llmgw_router.errors import ApiError


class Wire:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.out = b""
        self.closed = False

    def write(self, data: bytes) -> None:
        self.out += data

    def write_eof(self) -> None:
        self.closed = True

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def can_write_eof(self) -> bool:
        return True

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return "127.0.0.1", 1

    def set_write_buffer_limits(self, high: int) -> None:
        assert high > 0

    def pause_reading(self) -> None:
        raise AssertionError("these tests never send so much")


Seen = tuple[bytes, bytes, bytes, bytes, bytes, bool]


class Desk:
    """Stands in for the front: keeps each request and answers it at once."""

    def __init__(self) -> None:
        self.limits = Limits(header_fields=20, head_bytes=2048)
        self.session_header = b"x-session-id"
        self.cors = Cors([])
        self.closing = False
        self.keys = object()
        self.loop = self
        self.seen: list[Seen] = []
        self.refused: list[int] = []
        self._id = 0
        self._soon: list[Any] = []

    def now(self) -> float:
        return 1.0

    def call_soon(self, callback: Any) -> None:
        self._soon.append(callback)

    def settle_pending(self) -> None:
        while self._soon:
            self._soon.pop(0)()

    def new_id(self) -> bytes:
        self._id += 1
        return b"id-%d" % self._id

    def joined(self, connection: ClientConnection) -> None:
        return None

    def left(self, connection: ClientConnection) -> None:
        return None

    def reserve(self, connection: ClientConnection, size: int) -> None:
        return None

    def unreserve(self, connection: ClientConnection) -> None:
        raise AssertionError("nothing was reserved")

    def head(self, connection: ClientConnection) -> ApiError | None:
        connection.route = RELAYED.get(connection.head.path)
        return None if connection.route is not None else ApiError(404, "not_found", "Nothing here.")

    def request(self, connection: ClientConnection, body: bytes) -> None:
        head = connection.head
        self.seen.append((head.method, head.path, head.passed, head.authorization, body, connection.keep_alive))
        connection.write(b"answer to %b;" % head.request_id)
        connection.finished()

    def settle_local(self, connection: ClientConnection, status: int, error: str = "") -> None:
        self.refused.append(status)


def connect() -> tuple[ClientConnection, Desk, Wire]:
    desk, wire = Desk(), Wire()
    connection = ClientConnection(cast(Front, desk))
    connection.connection_made(cast(asyncio.Transport, wire))
    return connection, desk, wire


def post(body: bytes, *fields: bytes, path: bytes = b"/v1/completions", length: bytes = b"Content-Length") -> bytes:
    lines = [b"POST %b HTTP/1.1" % path, b"Host: r", *fields, b"%b: %d" % (length, len(body)), b"X-End: 1", b"", body]
    return b"\r\n".join(lines)


def test_a_head_that_repeats_gives_the_same_request_with_its_own_body_and_id() -> None:
    connection, desk, wire = connect()
    for body in (b"{}", b"a longer body", b"", b"x" * 1000):
        connection.data_received(post(body, b"Authorization: Bearer k", b"X-Custom: v"))
    assert [each[4] for each in desk.seen] == [b"{}", b"a longer body", b"", b"x" * 1000]
    assert len({each[:4] for each in desk.seen}) == 1
    assert desk.seen[0][2] == b"X-Custom: v\r\nX-End: 1\r\n"
    assert wire.out == b"answer to id-1;answer to id-2;answer to id-3;answer to id-4;"


requests = st.tuples(
    st.binary(max_size=30),
    st.lists(
        st.sampled_from([b"X-A: 1", b"X-B: 2", b"Authorization: Bearer k", b"X-Request-Id: mine"]), max_size=3, unique=True
    ),
    st.sampled_from([b"/v1/completions", b"/v1/embeddings"]),
    st.sampled_from([b"Content-Length", b"content-length"]),
)


@given(st.lists(requests, min_size=1, max_size=6), st.data())
@settings(deadline=None)
def test_one_connection_reads_requests_as_fresh_ones_do(
    asked: list[tuple[bytes, list[bytes], bytes, bytes]], data: st.DataObject
) -> None:
    wire = [post(body, *fields, path=path, length=length) for body, fields, path, length in asked]
    expected: list[Seen] = []
    for each in wire:
        fresh, desk, _ = connect()
        fresh.data_received(each)
        expected += desk.seen
    assert len(expected) == len(wire)
    connection, desk, _ = connect()
    stream = b"".join(wire)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    if data.draw(st.booleans()):
        pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    else:
        pieces = wire
    for piece in pieces:
        connection.data_received(piece)
        desk.settle_pending()
    assert desk.seen == expected


@pytest.mark.parametrize(
    "second",
    [
        post(b"{}").replace(b"Content-Length: 2", b"Content-Length: +2"),
        post(b"{}").replace(b"Content-Length: 2", b"Content-Length: 2 2"),
        post(b"{}").replace(b"Content-Length: 2", b"Content-Length: "),
        post(b"{}").replace(b"Content-Length: 2", b"Content-Length: 2\r\nContent-Length: 3"),
        post(b"{}").replace(b"Content-Length: 2", b"Content-Length: 2\r\nTransfer-Encoding: chunked"),
        post(b"{}").replace(b"Content-Length: 2\r\n", b"Content-Length: 2\n"),
        post(b"{}").replace(b"X-End: 1", b"X-End: 1\nX"),
        post(b"{}").replace(b"Content-Length: 2", "Content-Length: ٢".encode()),
    ],
)
def test_a_head_that_nearly_repeats_is_read_strictly(second: bytes) -> None:
    connection, desk, wire = connect()
    connection.data_received(post(b"{}"))
    assert len(desk.seen) == 1
    connection.data_received(second)
    desk.settle_pending()
    assert len(desk.seen) == 1
    assert desk.refused == [400]
    assert connection.state == LINGER
    assert wire.closed


def test_key_that_changes_between_requests_is_seen() -> None:
    connection, desk, _ = connect()
    for key in (b"one", b"one", b"two", b"one"):
        connection.data_received(post(b"{}", b"Authorization: Bearer " + key))
    assert [each[3] for each in desk.seen] == [b"Bearer one", b"Bearer one", b"Bearer two", b"Bearer one"]


def test_keys_that_are_read_again_are_asked_again() -> None:
    connection, desk, _ = connect()
    connection.data_received(post(b"{}"))
    desk.keys = object()
    desk.head = lambda connection: ApiError(401, "invalid_api_key", "Not any more.")  # type: ignore[method-assign]  # from now on
    connection.data_received(post(b"{}"))
    assert len(desk.seen) == 1
    assert desk.refused == [401]


def test_hop_by_hop_fields_and_credentials_are_not_passed_on() -> None:
    connection, desk, _ = connect()
    fields = [
        b"Connection: keep-alive, X-Secret",
        b"X-Secret: s",
        b"X-Open: o",
        b"Keep-Alive: 5",
        b"TE: trailers",
        b"Cookie: c",
    ]
    more = [
        b"Authorization: Bearer k",
        b"x-api-key: k",
        b"Proxy-Authorization: p",
        b"X-Stainless-Lang: py",
        b"Accept-Encoding: gzip",
    ]
    connection.data_received(post(b"{}", *fields, *more, b"traceparent: 00-a-b-01"))
    assert desk.seen[0][2] == b"X-Open: o\r\ntraceparent: 00-a-b-01\r\nX-End: 1\r\n"


def test_chunked_bodies_and_pipelined_requests() -> None:
    connection, desk, _ = connect()
    chunked = b"POST /v1/completions HTTP/1.1\r\nHost: r\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    for piece in (chunked + post(b"{}"), chunked[:70], chunked[70:] + chunked):
        connection.data_received(piece)
        desk.settle_pending()
    assert [each[4] for each in desk.seen] == [b"abc", b"{}", b"abc", b"abc"]
    assert connection.state == HEAD


def test_a_client_that_does_not_read_gets_no_further_answers_until_it_does() -> None:
    connection, desk, _ = connect()
    connection.data_received(post(b"1"))
    connection.pause_writing()
    connection.data_received(post(b"2"))
    desk.settle_pending()
    assert [each[4] for each in desk.seen] == [b"1"]
    assert not connection.idle
    connection.resume_writing()
    desk.settle_pending()
    assert [each[4] for each in desk.seen] == [b"1", b"2"]
    assert connection.idle


def test_limits_of_the_head() -> None:
    for fields, status in (([b"X-N: 1"] * 20, 431), ([b"X-Long: " + b"x" * 3000], 431), ([b"Host: again"], 400)):
        connection, desk, _ = connect()
        connection.data_received(post(b"{}", *fields))
        assert desk.refused == [status]
        assert not desk.seen


def test_a_head_that_never_ends_is_timed_out() -> None:
    connection, desk, _ = connect()
    connection.data_received(b"POST /v1/comp")
    connection.check(10.9)
    assert desk.refused == []
    connection.check(11.1)
    assert desk.refused == [408]


def test_a_body_that_trickles_is_timed_out_and_one_that_flows_is_not() -> None:
    for rate, refused in ((10, [408]), (5000, [])):
        connection, desk, _ = connect()
        connection.data_received(post(b"x" * 1_000_000)[:200])
        for second in range(1, 60):
            if connection.state != LINGER:
                connection.data_received(b"x" * rate)
                connection.check(1.0 + second)
        assert desk.refused == refused
