"""What the client gets is what the engine sent, byte for byte, however the network cut it."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmgw_testing.fake_engine import FakeEngine
from llmgw_testing.fake_openai import LAST_CHUNK, STREAM_HEAD, chat_events, chunk, event, head, json_reply, message_events, raw
from llmgw_testing.fake_wire import Exchange, Script
from llmgw_testing.raw_http import RawClient, ask, ask_chat, build, chat, metric
from llmgw_testing.router_process import RouterProcess

KEY = "sk-1"
TOKENS = "llmgw_router_tokens_total"


@dataclass
class Pair:
    router: RouterProcess
    engine: FakeEngine

    def tokens(self, kind: str) -> float:
        return metric(self.router.port, TOKENS, kind=kind)


@pytest.fixture(scope="module")
def running() -> Iterator[Pair]:
    with FakeEngine("m") as engine, RouterProcess({"e1": (engine.url, ["m"])}, keys={"client": KEY}) as router:
        yield Pair(router, engine)


@pytest.fixture
def pair(running: Pair) -> Pair:
    running.engine.reset_state()
    return running


def pieces(wire: bytes, *cuts: int, pause: float = 0.001) -> Script:
    """Sends the wire bytes cut at these offsets, with a pause in between so that each piece is read alone."""

    async def script(exchange: Exchange) -> None:
        last = 0
        for cut in [*cuts, len(wire)]:
            if cut > last:
                await exchange.send(wire[last:cut])
                await exchange.pause(pause)
            last = cut

    return script


def framed(events: list[bytes]) -> bytes:
    return STREAM_HEAD + b"".join(chunk(item) for item in events) + LAST_CHUNK


def streamed(client: RawClient, **fields: Any) -> bytes:
    client.send(build("POST", "/v1/chat/completions", chat(stream=True, **fields), key=KEY))
    answer = client.answer()
    assert answer.status == 200
    return answer.body


ASKED = {"stream_options": {"include_usage": True}}


def test_stream_split_at_every_offset_is_unchanged_and_usage_is_counted(pair: Pair) -> None:
    events = chat_events("m", ["Hi", "ž\u2028\u0085\U0001f600"])
    wire, expected = framed(events), b"".join(events)
    before = pair.tokens("completion")
    with RawClient(pair.router.port) as client:
        for cut in range(1, len(wire)):
            pair.engine.script(pieces(wire, cut))
            assert streamed(client, **ASKED) == expected, f"cut at {cut}"
    assert pair.tokens("completion") - before == 2 * (len(wire) - 1)


def test_stream_in_single_bytes_is_unchanged_and_usage_is_counted(pair: Pair) -> None:
    events = chat_events("m", ["Hi", "ž"])
    wire = framed(events)
    before = pair.tokens("completion"), pair.tokens("prompt")
    pair.engine.script(pieces(wire, *range(1, len(wire))))
    with RawClient(pair.router.port) as client:
        assert streamed(client, **ASKED) == b"".join(events)
    assert (pair.tokens("completion") - before[0], pair.tokens("prompt") - before[1]) == (2, 7)


def test_usage_chunk_that_the_client_did_not_ask_for_is_withheld_at_every_split(pair: Pair) -> None:
    events = chat_events("m", ["Hi", "ž"])
    expected = b"".join(item for item in events if b'"choices":[]' not in item)
    wire = framed(events)
    first = wire.index(b'"finish_reason":"stop"')
    before = pair.tokens("completion")
    with RawClient(pair.router.port) as client:
        for cut in range(first, len(wire)):
            pair.engine.script(pieces(wire, cut))
            assert streamed(client) == expected, f"cut at {cut}"
    assert pair.tokens("completion") - before == 2 * (len(wire) - first)
    asked = pair.engine.requests[-1].json()
    assert asked["stream_options"]["include_usage"] is True
    assert asked["messages"] == chat()["messages"]


def test_usage_inside_the_last_content_chunk_is_not_withheld(pair: Pair) -> None:
    """Some engines put the usage into a chunk that also has choices: the client needs that chunk."""
    last = {"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}]}
    used = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    events = [event({**last, "usage": used}), event("[DONE]")]
    pair.engine.script(raw(framed(events)))
    before = pair.tokens("completion")
    with RawClient(pair.router.port) as client:
        assert streamed(client) == b"".join(events)
    assert pair.tokens("completion") - before == 4


def test_usage_null_in_every_chunk_is_passed_on(pair: Pair) -> None:
    """With include_usage, OpenAI's own API sends `"usage":null` in each chunk but the last."""
    base = {"id": "x", "object": "chat.completion.chunk"}
    content = [event({**base, "choices": [{"index": 0, "delta": {"content": word}}], "usage": None}) for word in ("a", "b")]
    final = event({**base, "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}})
    pair.engine.script(raw(framed([*content, final, event("[DONE]")])))
    with RawClient(pair.router.port) as client:
        assert streamed(client) == b"".join([*content, event("[DONE]")])


SSE_FORMS = {
    "crlf line ends": b'data: {"choices":[{"delta":{"content":"a"}}]}\r\n\r\ndata: [DONE]\r\n\r\n',
    "no space after the colon": b'data:{"choices":[{"delta":{"content":"a"}}]}\n\ndata:[DONE]\n\n',
    "comments as keep-alive": b': ping\n\n: ping\n\ndata: {"choices":[{"delta":{}}]}\n\n: x\n\ndata: [DONE]\n\n',
    "event, id and retry fields": b'event: m\nid: 7\nretry: 10\ndata: {"choices":[{"delta":{}}]}\n\ndata: [DONE]\n\n',
    "data over several lines": b'data: {"choices":\ndata: [{"delta":{}}]}\n\ndata: [DONE]\n\n',
    "no blank line at the end": b'data: {"choices":[{"delta":{}}]}\n\ndata: [DONE]',
    "no DONE at all": b'data: {"choices":[{"delta":{}}]}\n\n',
    "byte order mark": b'\xef\xbb\xbfdata: {"choices":[{"delta":{}}]}\n\ndata: [DONE]\n\n',
    "not json": b"data: hello\n\ndata: \n\ndata\n\n\n\n\ndata: [DONE]\n\n",
    "line separators in the text": 'data: {"choices":[{"delta":{"content":"a\u2028b\u2029c\x85d\u0085e"}}]}\n\n'.encode(),
    "not utf-8": b'data: {"choices":[{"delta":{"content":"\xff\xfe\x00"}}]}\n\ndata: [DONE]\n\n',
    "an event of 300 kB": b'data: {"choices":[{"delta":{"content":"' + b"x" * 300_000 + b'"}}]}\n\ndata: [DONE]\n\n',
    "empty": b"",
}


@pytest.mark.parametrize("name", SSE_FORMS)
def test_every_form_of_events_passes_unchanged(pair: Pair, name: str) -> None:
    body = SSE_FORMS[name]
    middle = len(body) // 2
    parts = [part for part in (body[:middle], body[middle:]) if part]
    wire = STREAM_HEAD + b"".join(chunk(part) for part in parts) + LAST_CHUNK
    pair.engine.script(pieces(wire, len(STREAM_HEAD), len(STREAM_HEAD) + middle // 2, len(wire) - 3))
    with RawClient(pair.router.port) as client:
        assert streamed(client, **ASKED) == body


def test_random_cuts_in_chunks_and_writes(pair: Pair) -> None:
    """Chunk boundaries and write boundaries both at random places, 60 times, from a fixed seed."""
    source = random.Random(7)
    body = b"".join(chat_events("m", [f"word{i} ž\u2028" for i in range(12)]))
    with RawClient(pair.router.port) as client:
        for _ in range(60):
            marks = sorted(source.sample(range(1, len(body)), source.randint(0, 20)))
            parts = [body[a:b] for a, b in zip([0, *marks], [*marks, len(body)], strict=True)]
            wire = STREAM_HEAD + b"".join(chunk(part) for part in parts) + LAST_CHUNK
            pair.engine.script(pieces(wire, *sorted(source.sample(range(1, len(wire)), 6))))
            assert streamed(client, **ASKED) == body


SCRAPS = st.sampled_from(
    [
        b"data: ",
        b"data:",
        b"event: error\n",
        b"\n",
        b"\r",
        b"\r\n",
        b"\n\n",
        b":",
        b'{"usage":null}',
        b'{"usage":{"completion_tokens":1}}',
        b'{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}',
        b"[DONE]",
        b"{",
        b'"',
        b"\xff",
        "\u2028".encode(),
        b"x" * 300,
    ]
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(scraps=st.lists(SCRAPS | st.binary(max_size=4), max_size=12), seed=st.integers(0, 2**32))
def test_any_stream_passes_unchanged_in_any_pieces(pair: Pair, scraps: list[bytes], seed: int) -> None:
    body, source = b"".join(scraps), random.Random(seed)
    marks = sorted(source.sample(range(1, len(body)), min(len(body) - 1, source.randint(0, 5)))) if len(body) > 1 else []
    parts = [body[a:b] for a, b in zip([0, *marks], [*marks, len(body)], strict=True) if a < b]
    wire = STREAM_HEAD + b"".join(chunk(part) for part in parts) + LAST_CHUNK
    pair.engine.script(pieces(wire, *sorted(source.sample(range(1, len(wire)), 2)), pause=0.0005))
    with RawClient(pair.router.port) as client:
        assert streamed(client, **ASKED) == body


def test_json_answer_split_at_every_offset_is_unchanged(pair: Pair) -> None:
    value = {
        "id": "x",
        "choices": [{"message": {"content": "ž\u2028"}}],
        "unknown": [1.0, 10**30],
        "usage": {"completion_tokens": 1},
    }
    wire = json_reply(200, value)
    body = wire.partition(b"\r\n\r\n")[2]
    before = pair.tokens("completion")
    with RawClient(pair.router.port) as client:
        for cut in range(1, len(wire)):
            pair.engine.script(pieces(wire, cut))
            client.send(build("POST", "/v1/chat/completions", chat(), key=KEY))
            answer = client.answer()
            assert (answer.status, answer.body) == (200, body), f"cut at {cut}"
    assert pair.tokens("completion") - before == len(wire) - 1


def test_answer_framings_of_engines(pair: Pair) -> None:
    """Length, chunks with extensions and trailers, and an answer that ends with the connection."""
    body = b'{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}'
    kind = "content-type: application/json"
    wires = {
        "length": head(200, kind, f"Content-Length: {len(body)}") + body,
        "chunks": head(200, kind, "Transfer-Encoding: chunked") + chunk(body[:9]) + chunk(body[9:]) + LAST_CHUNK,
        "extensions": head(200, kind, "transfer-encoding: Chunked")
        + f"{len(body):X};a=b\r\n".encode()
        + body
        + b"\r\n0\r\nx-late: 1\r\n\r\n",
    }
    for name, wire in wires.items():
        pair.engine.script(pieces(wire, len(wire) // 2))
        answer = ask_chat(pair.router.port, key=KEY)
        assert (answer.status, answer.body) == (200, body), name
    for version in ("1.0", "1.1"):
        wire = f"HTTP/{version} 200 OK\r\n{kind}\r\nconnection: close\r\n\r\n".encode() + body
        pair.engine.script(raw(wire, close=True))
        answer = ask_chat(pair.router.port, key=KEY)
        assert (answer.status, answer.body) == (200, body), version
    no_body = raw(head(204))
    pair.engine.script(no_body)
    assert ask_chat(pair.router.port, key=KEY).status == 204


def test_stream_that_ends_with_the_connection_is_whole(pair: Pair) -> None:
    events = b"".join(chat_events("m", ["a"]))
    pair.engine.script(raw(head(200, "content-type: text/event-stream", "connection: close"), events, close=True))
    with RawClient(pair.router.port) as client:
        assert streamed(client, **ASKED) == events


def test_informational_answers_of_engines_are_not_taken_for_the_answer(pair: Pair) -> None:
    pair.engine.script(
        raw(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n", json_reply(200, {"ok": 1}))
    )
    answer = ask_chat(pair.router.port, key=KEY)
    assert (answer.status, answer.json()) == (200, {"ok": 1})


def test_binary_and_large_answers_are_unchanged(pair: Pair) -> None:
    audio = bytes(range(256)) * 64
    pair.engine.script(raw(head(200, "content-type: audio/mpeg", f"content-length: {len(audio)}"), audio))
    answer = ask(pair.router.port, "POST", "/v1/audio/speech", {"model": "m", "input": "Hi", "voice": "x"}, key=KEY)
    assert answer.header("content-type") == "audio/mpeg"
    assert answer.body == audio
    large = random.Random(3).randbytes(9 * 2**20)
    parts = [large[at : at + 100_000] for at in range(0, len(large), 100_000)]
    pair.engine.script(raw(head(200, "content-type: audio/wav", "transfer-encoding: chunked"), *map(chunk, parts), LAST_CHUNK))
    answer = ask(pair.router.port, "POST", "/v1/audio/speech", {"model": "m", "input": "Hi", "voice": "x"}, key=KEY)
    assert hashlib.sha256(answer.body).digest() == hashlib.sha256(large).digest()


def test_anthropic_stream_split_at_every_offset(pair: Pair) -> None:
    events = message_events("m", ["Hi", "ž\u2028"])
    wire = framed(events)
    before = pair.tokens("completion"), pair.tokens("prompt")
    body = {"model": "m", "max_tokens": 9, "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
    cuts = range(1, len(wire), 3)
    with RawClient(pair.router.port) as client:
        for cut in cuts:
            pair.engine.script(pieces(wire, cut))
            client.send(build("POST", "/v1/messages", body, f"x-api-key: {KEY}"))
            assert client.answer().body == b"".join(events), f"cut at {cut}"
    count = len(cuts)
    assert (pair.tokens("completion") - before[0], pair.tokens("prompt") - before[1]) == (2 * count, 7 * count)


def test_request_bodies_reach_the_engine_unchanged(pair: Pair) -> None:
    """Odd but valid JSON: spaces, escapes, unknown fields, big integers, order of keys."""
    body = (
        b' {"z":1e2 , "model"\t:"m","messages":[ {"role":"user","content":"\\u0041\\ud83d\\ude00\xc5\xbe"} ],\r\n'
        b'"seed":12345678901234567890,"x":{"y":[[],{}]},"max_tokens":5 }'
    )
    for request in (
        build("POST", "/v1/chat/completions", body, key=KEY),
        build("POST", "/v1/chat/completions", None, "transfer-encoding: chunked", "content-type: application/json", key=KEY)
        + b"".join(chunk(body[at : at + 7]) for at in range(0, len(body), 7))
        + LAST_CHUNK,
    ):
        with RawClient(pair.router.port) as client:
            client.send(request)
            assert client.answer().status == 200
        assert pair.engine.requests[-1].body == body


def test_request_split_at_every_offset_is_the_same_request(pair: Pair) -> None:
    wire = build("POST", "/v1/chat/completions?trace=1", chat(max_tokens=1), "x-custom: kept", key=KEY)
    with RawClient(pair.router.port) as client:
        for cut in range(1, len(wire)):
            client.send(wire[:cut])
            time.sleep(0.001)
            client.send(wire[cut:])
            assert client.answer().status == 200, f"cut at {cut}"
    assert len({request.body for request in pair.engine.requests}) == 1
    assert {request.header("x-custom") for request in pair.engine.requests} == {"kept"}
    assert not pair.engine.broken
