"""The side parser of streams: whatever the engine's writes look like, the client gets the same bytes and the usage is read."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_router.relay import events
from llmgw_router.relay.events import EventStream, is_client_fault, is_error
from llmgw_router.relay.usage import Usage

USAGE = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}


def event(value: object, end: str = "\n\n") -> bytes:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"data: {text}{end}".encode()


def content(text: str) -> dict[str, object]:
    return {"id": "c", "choices": [{"index": 0, "delta": {"content": text}}]}


USAGE_ONLY = {"id": "c", "choices": [], "usage": USAGE}
STREAM = b"".join(
    [
        event(content("")),
        event(content('he said "usage": {"prompt_tokens": 1} and left')),
        b": a comment\n\n",
        event(content("line\u2028break\u0085")),
        event(USAGE_ONLY),
        event("[DONE]"),
    ]
)


def relay(pieces: list[bytes], *, withhold: bool = False) -> tuple[bytes, EventStream]:
    stream = EventStream(Usage(), withhold=withhold)
    out = b"".join(stream.feed(piece) for piece in pieces)
    return out + stream.flush(), stream


def cut(data: bytes, at: list[int]) -> list[bytes]:
    edges = [0, *sorted(at), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges) if start < end]


def test_split_at_every_byte_changes_nothing() -> None:
    for at in range(len(STREAM) + 1):
        out, stream = relay([piece for piece in (STREAM[:at], STREAM[at:]) if piece])
        assert out == STREAM
        assert (stream.usage.prompt, stream.usage.completion) == (7, 5)


def test_one_byte_at_a_time_changes_nothing() -> None:
    out, stream = relay([STREAM[at : at + 1] for at in range(len(STREAM))])
    assert out == STREAM
    assert stream.usage.completion == 5


texts = st.text(max_size=30)
endings = st.sampled_from(["\n\n", "\r\n\r\n"])


@given(st.lists(texts, max_size=6), endings, st.booleans(), st.data())
def test_any_stream_in_any_pieces(words: list[str], end: str, withhold: bool, data: st.DataObject) -> None:
    parts = [event(content(word), end) for word in words]
    usage = event(USAGE_ONLY, end)
    whole = b"".join([*parts, usage, event("[DONE]", end)])
    at = data.draw(st.lists(st.integers(0, len(whole)), max_size=8))
    out, stream = relay(cut(whole, at), withhold=withhold)
    assert out == (whole.replace(usage, b"") if withhold else whole)
    assert stream.usage.completion == 5
    assert stream.events == len(words) + (1 if withhold else 2)


@given(st.binary(max_size=300), st.data())
def test_what_is_no_stream_of_events_passes_unchanged(junk: bytes, data: st.DataObject) -> None:
    at = data.draw(st.lists(st.integers(0, len(junk)), max_size=8))
    out, _ = relay(cut(junk, at))
    assert out == junk


@given(st.data())
def test_parts_given_out_early_are_not_given_twice(data: st.DataObject) -> None:
    at = data.draw(st.lists(st.integers(0, len(STREAM)), max_size=8))
    hurried = data.draw(st.lists(st.booleans(), min_size=9, max_size=9))
    stream = EventStream(Usage(), withhold=False)
    out = b""
    for piece, now in zip(cut(STREAM, at), hurried, strict=False):
        out += stream.feed(piece)
        if now:
            out += stream.hurry()
    assert out + stream.flush() == STREAM
    assert stream.usage.completion == 5, "a torn event still tells its usage"


def test_only_whole_events_are_passed_on() -> None:
    stream = EventStream(Usage(), withhold=False)
    first = event(content("a"))
    assert stream.feed(first + b'data: {"torn') == first
    assert stream.holding
    assert stream.ends_clean
    assert stream.feed(b'": 1}\n') == b""
    assert stream.feed(b"\n") == b'data: {"torn": 1}\n\n'
    assert not stream.holding


def test_an_event_without_end_is_passed_on_before_it_fills_the_memory() -> None:
    stream = EventStream(Usage(), withhold=False)
    piece = b"x" * 65_536
    out = b"".join(stream.feed(piece) for _ in range(10))
    assert len(out) >= 10 * len(piece) - events.HOLD_LIMIT
    assert out + stream.flush() == piece * 10


def test_usage_in_a_chunk_with_choices_is_never_withheld() -> None:
    both = event({"choices": [{"index": 0, "delta": {}}], "usage": USAGE})
    out, stream = relay([both], withhold=True)
    assert out == both
    assert stream.usage.prompt == 7


def test_empty_usage_in_every_chunk_is_no_usage() -> None:
    chunk = event({"choices": [], "usage": None})
    out, stream = relay([chunk * 3], withhold=True)
    assert out == chunk * 3
    assert not stream.usage.known


def test_messages_tell_their_usage_in_two_events() -> None:
    start = b"event: message_start\n" + event({"type": "message_start", "message": {"usage": {"input_tokens": 9}}})
    delta = b"event: message_delta\n" + event({"type": "message_delta", "usage": {"output_tokens": 4}})
    out, stream = relay([start + delta])
    assert out == start + delta
    assert (stream.usage.prompt, stream.usage.completion) == (9, 4)
    assert stream.events == 2


def test_responses_tell_their_usage_when_completed() -> None:
    done = {"type": "response.completed", "response": {"usage": {"input_tokens": 3, "output_tokens": 2}}}
    _, stream = relay([b"event: response.completed\n" + event(done)])
    assert (stream.usage.prompt, stream.usage.completion) == (3, 2)


@pytest.mark.parametrize(
    ("first", "error", "client"),
    [
        (event({"error": {"message": "no", "code": 500}}), True, False),
        (event({"error": {"message": "no", "code": 400, "type": "BadRequestError"}}), True, True),
        (event({"object": "error", "message": "no", "code": 503}), True, False),
        (b"event: error\n" + event({"type": "error", "error": {"type": "overloaded_error"}}), True, False),
        (event(content("error")), False, False),
        (event({"choices": [], "error": None}), False, False),
        (b": error\n\n", False, False),
    ],
)
def test_errors_as_first_event(first: bytes, error: bool, client: bool) -> None:
    assert is_error(first) is error
    if error:
        assert is_client_fault(first) is client


def test_many_usages_in_one_read_count_in_their_order() -> None:
    first = event({"type": "message_start", "message": {"usage": {"input_tokens": 9, "output_tokens": 1}}})
    last = event({"type": "message_delta", "usage": {"output_tokens": 30}})
    nothing = event({"choices": [{}], "usage": None})
    out, stream = relay([first + nothing + last + nothing])
    assert out == first + nothing + last + nothing
    assert (stream.usage.prompt, stream.usage.completion) == (9, 30)
    assert stream.events == 4


def test_events_of_the_first_read_are_counted_when_asked_for_later() -> None:
    stream = EventStream(Usage(), withhold=True)
    many = event(content("a")) * 3 + event(USAGE_ONLY)
    assert stream.feed(many) == event(content("a")) * 3
    assert stream.feed(event(content("b")) + event(content("c"))) == event(content("b")) + event(content("c"))
    assert stream.feed(event(content("d"))) == event(content("d"))
    assert stream.events == 6


@given(st.binary(max_size=40))
def test_plain_events_are_those_that_pass_whole_and_count_once(data: bytes) -> None:
    for each in (data, b"data: " + data + b"\n\n"):
        stream, slow = EventStream(Usage(), withhold=True), EventStream(Usage(), withhold=True)
        if stream.plain(each):
            assert slow.feed(each) == each
            assert stream.events == 1
            assert not stream.holding
            assert stream.ends_clean
        else:
            assert stream.events == 0
