"""Shortcuts of engine connections: answers whose heads are known, chunks passed on untouched. Both against the parser alone."""

from __future__ import annotations

import asyncio
import itertools
from typing import cast

from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw_router.engine.connection import EngineConnection
from llmgw_router.engine.known import learn
from llmgw_router.errors import EngineError
from llmgw_router.relay.events import EventStream
from llmgw_router.relay.usage import Usage
from llmgw_router.table.replica import Replica
from llmgw_router.table.spec import Address, EndpointSpec

Seen = tuple[int, bytes, list[bytes], int | None, bool, bytes]


class Wire:
    def __init__(self) -> None:
        self.closed = False

    def write(self, data: bytes) -> None:
        assert data

    def abort(self) -> None:
        self.closed = True


class Owner:
    """Keeps what the exchange would see; with ``take``, it takes chunks as an exchange does."""

    def __init__(self, *, take: bool = False) -> None:
        self.seen: Seen | None = None
        self.body = b""
        self.taken = 0
        self.lost = False
        self.stream = EventStream(Usage(), withhold=False)
        self._take = take

    def engine_data(self, connection: EngineConnection, data: bytes, complete: bool) -> None:
        self.body += self.stream.feed(data)
        if self._take:
            connection.take_chunk = self.take_chunk
        if complete:
            self.body += self.stream.flush()
            head = (connection.status, connection.content_type, list(connection.head), connection.length, connection.keep)
            self.seen = (*head, self.body)

    def take_chunk(self, data: bytes) -> bool:
        size = self.stream.plain_chunk(data)
        if size:
            self.taken += 1
            assert data == b"%x\r\n%b\r\n" % (size, data[-size - 2 : -2])
            self.body += data[-size - 2 : -2]
        return size > 0

    def engine_lost(self, connection: EngineConnection, error: EngineError) -> None:
        self.lost = True

    def engine_writable(self, writable: bool) -> None:
        raise AssertionError("nothing much is sent")


def connect(replica: Replica | None = None) -> EngineConnection:
    connection = EngineConnection(replica or Replica(EndpointSpec(id="e", address=Address("127.0.0.1", 1), models=("m",))))
    connection.connection_made(cast(asyncio.Transport, Wire()))
    return connection


def ask(connection: EngineConnection, pieces: list[bytes], *, take: bool = False) -> Owner:
    owner = Owner(take=take)
    connection.send(owner, b"request")
    for piece in pieces:
        connection.data_received(piece)
    return owner


def cut(data: bytes, at: list[int]) -> list[bytes]:
    return [data[a:b] for a, b in itertools.pairwise([0, *sorted(each % (len(data) + 1) for each in at), len(data)]) if a < b]


answers = st.tuples(
    st.sampled_from([b"200 OK", b"200 Fine", b"404 Not Found", b"500 Oh"]),
    st.lists(
        st.sampled_from(
            [b"Content-Type: application/json", b"X-A: 1", b"Date: now", b"Date: later", b"Connection: close", b"Server: s"]
        ),
        max_size=3,
        unique=True,
    ),
    st.sampled_from([b"Content-Length: %d", b"content-length:%d", b"Content-Length:  %d", b"Content-Length: 00%d"]),
    st.sampled_from([b"", b"{}", b"\r\n\r\n", b"x" * 40, b"content-length: 5\r\n\r\n"]),
    st.lists(st.integers(0, 300), max_size=2),
)


def render(answer: tuple[bytes, list[bytes], bytes, bytes, list[int]]) -> bytes:
    status, fields, length, body, _ = answer
    return b"\r\n".join([b"HTTP/1.1 " + status, *fields[:1], length % len(body), *fields[1:], b"", body])


@given(st.lists(answers, min_size=2, max_size=12))
@settings(deadline=None)
def test_answers_with_known_heads_are_read_as_the_parser_reads_them(
    given_answers: list[tuple[bytes, list[bytes], bytes, bytes, list[int]]],
) -> None:
    replica = Replica(EndpointSpec(id="e", address=Address("127.0.0.1", 1), models=("m",)))
    connection = connect(replica)
    for each in given_answers:
        # Each answer twice, for the second to be known; and the first of them counts as one to learn from.
        replica.misses = 0
        for pieces in ([render(each)], cut(render(each), each[4])):
            seen = ask(connection, pieces).seen
            assert seen == ask(connect(), pieces).seen
            assert seen is not None
            connection.release(0.0)
            if connection.closing:
                connection = connect(replica)


def test_a_known_head_is_used_for_another_length_only_when_all_is_there() -> None:
    def answer(body: bytes, size: int | None = None) -> bytes:
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nX-A: 1\r\n\r\n%b" % (len(body) if size is None else size, body)

    known = learn(answer(b"{}"), 2, [b"X-A: 1\r\n"], b"")
    assert known is not None
    assert known.body_of(answer(b"longer")) == b"longer"
    assert known.body_of(answer(b"")) == b""
    for other in (
        answer(b"part", 5),
        answer(b"and more", 5),
        answer(b"{}").replace(b"X-A: 1", b"X-A: 2"),
        answer(b"{}").replace(b"200", b"500"),
        answer(b"{}").replace(b": 2", b": +2"),
        answer(b"{}")[:-1],
        answer(b"{}")[:20],
        b"",
    ):
        assert known.body_of(other) is None


def test_heads_that_tell_their_length_twice_are_not_learned() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n"
    assert learn(head + b"{}", 2, [], b"") is None


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
chunks = st.lists(
    st.one_of(
        st.sampled_from(
            [
                b"data: one\n\n",
                b"data: one\n\n",
                b"data: two\n\ndata: three\n\n",
                b'data: {"usage":null}\n\n',
                b"event: a\ndata: b\n\n",
                b"data: cut",
                b" off\n\n",
                b"data: x\r\n\r\n",
                b"\n\n\r\n",
                b"5\r\nabc\n\n\r\n",
                b"\n",
            ]
        ),
        st.text(alphabet="\r\n5ad:", min_size=1, max_size=12).map(str.encode),
    ),
    min_size=1,
    max_size=12,
)


@given(chunks, st.sampled_from([b"%x\r\n", b"%X\r\n", b"0%x\r\n", b"%x;a=b\r\n"]), st.lists(st.integers(0, 600), max_size=6))
@settings(deadline=None)
def test_chunks_passed_on_untouched_are_what_the_parser_reads(payloads: list[bytes], size: bytes, at: list[int]) -> None:
    parts = [size % len(each) + each + b"\r\n" for each in payloads]
    stream = HEAD + b"".join(parts) + b"0\r\n\r\n"
    for pieces in ([HEAD, *parts, b"0\r\n\r\n"], cut(stream, at)):
        owner = ask(connect(), pieces, take=True)
        alone = ask(connect(), pieces)
        assert owner.seen is not None
        assert owner.body == b"".join(payloads)
        assert owner.seen == alone.seen
        assert owner.stream.events == alone.stream.events
        assert not owner.lost


def test_one_event_a_chunk_is_taken() -> None:
    part = b"d\r\ndata: hello\n\n\r\n"
    owner = ask(connect(), [HEAD, part, part, part, b"0\r\n\r\n"], take=True)
    assert owner.taken == 2
    assert owner.stream.events == 3
    assert owner.body == b"data: hello\n\n" * 3


def test_known_heads_are_used_and_learned_anew_after_a_change() -> None:
    replica = Replica(EndpointSpec(id="e", address=Address("127.0.0.1", 1), models=("m",)))
    connection = connect(replica)

    def misses(date: bytes, times: int) -> int:
        before = replica.misses
        for number in range(times):
            data = b"HTTP/1.1 200 OK\r\nDate: %b\r\nContent-Length: %d\r\n\r\n%b" % (date, number, b"x" * number)
            assert ask(connection, [data]).seen is not None
            connection.release(0.0)
        return replica.misses - before

    assert misses(b"one", 50) < 3
    assert misses(b"two", 50) < 12
    assert misses(b"two", 50) == 0
