"""The decoder of chunked request bodies: strict, bounded, and never past the end of the body."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_router.http.chunked import ChunkedBody, ChunkError


def encode(parts: list[bytes], extension: bytes = b"", trailer: bytes = b"") -> bytes:
    chunks = b"".join(b"%x%b\r\n%b\r\n" % (len(part), extension, part) for part in parts if part)
    return chunks + b"0\r\n" + trailer + b"\r\n"


@given(
    st.lists(st.binary(max_size=40), max_size=8),
    st.sampled_from([b"", b";a=b", b' ; name="value"']),
    st.sampled_from([b"", b"X-T: 1\r\n", b"Content-Length: 3\r\nX: y\r\n"]),
    st.binary(max_size=20),
    st.data(),
)
def test_any_body_in_any_pieces(
    parts: list[bytes], extension: bytes, trailer: bytes, after: bytes, data: st.DataObject
) -> None:
    wire = encode(parts, extension, trailer) + after
    at = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=6)))
    body = ChunkedBody()
    rest = b""
    for start, end in zip([0, *at], [*at, len(wire)], strict=True):
        if body.done:
            rest += wire[start:end]
        elif start < end:
            rest += body.feed(wire[start:end])
    assert body.done
    assert bytes(body.body) == b"".join(parts)
    assert rest == after


@given(st.binary(max_size=60))
def test_any_bytes_are_refused_or_read_and_never_crash(wire: bytes) -> None:
    body = ChunkedBody()
    try:
        body.feed(wire)
    except ChunkError as error:
        assert str(error)


@pytest.mark.parametrize(
    "wire",
    [
        b"5\nhello\n0\n\n",
        b"5\r\nhello0\r\n\r\n",
        b"5\r\nhello\n0\r\n\r\n",
        b"4\r\nhello\r\n0\r\n\r\n",
        b"0x5\r\nhello\r\n0\r\n\r\n",
        b"+5\r\nhello\r\n0\r\n\r\n",
        b"-5\r\nhello\r\n0\r\n\r\n",
        b" 5\r\nhello\r\n0\r\n\r\n",
        b"\r\n",
        b";ext\r\n",
        b"5;a\x01b\r\nhello\r\n0\r\n\r\n",
        b"ffffffffffffffff\r\n",
        b"1" * 2000,
        b"5;" + b"x" * 5000 + b"\r\nhello\r\n0\r\n\r\n",
        b"0\r\nno colon\r\n\r\n",
        b"0\r\n: empty\r\n\r\n",
        b"0\r\n" + b"A: b\r\n" * 4000 + b"\r\n",
        encode([b"x"] * 3000, b";" + b"e" * 10),
    ],
)
def test_refused(wire: bytes) -> None:
    with pytest.raises(ChunkError):
        ChunkedBody().feed(wire)


def test_many_small_chunks_are_no_offence() -> None:
    body = ChunkedBody()
    body.feed(encode([b"x"] * 20_000))
    assert body.done
    assert len(body.body) == 20_000
