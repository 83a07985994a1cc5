"""Bodies that are not the JSON they should be: 400 in OpenAI's shape, and the engine never sees them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmgw_testing.fake_engine import FakeEngine
from llmgw_testing.fake_openai import LAST_CHUNK, chunk
from llmgw_testing.raw_http import RawClient, ask, ask_chat, build, chat
from llmgw_testing.router_process import RouterProcess

MIB = 2**20


@dataclass
class Pair:
    router: RouterProcess
    engine: FakeEngine

    @property
    def port(self) -> int:
        return self.router.port


@pytest.fixture(scope="module")
def running() -> Iterator[Pair]:
    settings = {"health.probe_all": "false"}
    with FakeEngine("m") as engine, RouterProcess({"e1": (engine.url, ["m"])}, settings=settings) as router:
        yield Pair(router, engine)


@pytest.fixture
def pair(running: Pair) -> Iterator[Pair]:
    running.engine.reset_state()
    yield running
    assert ask_chat(running.port).status == 200


MESSAGES = b'"messages":[{"role":"user","content":"Hi"}]'

BAD: dict[str, bytes] = {
    "empty": b"",
    "space": b" ",
    "null": b"null",
    "true": b"true",
    "number": b"1",
    "string": b'"model"',
    "array": b"[]",
    "array of the request": b'[{"model":"m"}]',
    "form": b"model=m&messages=x",
    "open brace": b"{",
    "cut short": b'{"model":"m",' + MESSAGES,
    "something after the end": b'{"model":"m",' + MESSAGES + b"} x",
    "two objects": b'{"model":"m",' + MESSAGES + b'}{"model":"m"}',
    "comma at the end": b'{"model":"m",' + MESSAGES + b",}",
    "single quotes": b"{'model':'m'}",
    "no quotes": b'{model:"m"}',
    "comment": b'{"model":"m",/* x */' + MESSAGES + b"}",
    "NaN": b'{"model":"m","temperature":NaN,' + MESSAGES + b"}",
    "Infinity": b'{"model":"m","temperature":-Infinity,' + MESSAGES + b"}",
    "number with leading zero": b'{"model":"m","n":01,' + MESSAGES + b"}",
    "bare line end in a string": b'{"model":"m","x":"a\nb",' + MESSAGES + b"}",
    "control character in a string": b'{"model":"m","x":"a\x01b",' + MESSAGES + b"}",
    "unknown escape": b'{"model":"m","x":"\\q",' + MESSAGES + b"}",
    "byte order mark": b'\xef\xbb\xbf{"model":"m",' + MESSAGES + b"}",
    "not utf-8": b'{"model":"m","messages":[{"role":"user","content":"\xff\xfe"}]}',
    "latin-1": '{"model":"m","x":"größe"}'.encode("latin-1"),
    "overlong utf-8": b'{"model":"m","x":"\xc0\xaf"}',
    "surrogate in utf-8": b'{"model":"m","x":"\xed\xa0\x80"}',
    "utf-16": '{"model":"m"}'.encode("utf-16"),
    "utf-32": '{"model":"m"}'.encode("utf-32"),
    "NUL after the end": b'{"model":"m",' + MESSAGES + b"}\x00",
    "100,000 brackets": b"[" * 100_000,
    "100,000 arrays deep": b'{"model":"m","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "100,000 objects deep": b'{"model":"m","x":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
    "no model": b"{" + MESSAGES + b"}",
    "empty object": b"{}",
    "model null": b'{"model":null,' + MESSAGES + b"}",
    "model a number": b'{"model":5,' + MESSAGES + b"}",
    "model a list": b'{"model":["m"],' + MESSAGES + b"}",
    "model an object": b'{"model":{"m":1},' + MESSAGES + b"}",
    "model true": b'{"model":true,' + MESSAGES + b"}",
    "model empty": b'{"model":"",' + MESSAGES + b"}",
    "model twice": b'{"model":"m",' + MESSAGES + b',"model":"other"}',
    "model twice the same": b'{"model":"m",' + MESSAGES + b',"model":"m"}',
    "model twice, once escaped": b'{"model":"m",' + MESSAGES + b',"mod\\u0065l":"other"}',
    "stream twice": b'{"model":"m","stream":true,' + MESSAGES + b',"stream":false}',
    "max_tokens twice": b'{"model":"m","max_tokens":1,' + MESSAGES + b',"max_tokens":100000}',
    "stream a string": b'{"model":"m","stream":"true",' + MESSAGES + b"}",
    "stream a number": b'{"model":"m","stream":1,' + MESSAGES + b"}",
    "stream_options a list": b'{"model":"m","stream":true,"stream_options":[],' + MESSAGES + b"}",
    "include_usage a string": b'{"model":"m","stream":true,"stream_options":{"include_usage":"yes"},' + MESSAGES + b"}",
    "max_tokens a string": b'{"model":"m","max_tokens":"5",' + MESSAGES + b"}",
    "a number beyond a double": b'{"model":"m","max_tokens":1e999999,' + MESSAGES + b"}",
}


@pytest.mark.parametrize("name", BAD)
def test_refused_in_the_shape_of_openai_with_the_engine_untouched(pair: Pair, name: str) -> None:
    for path in ("/v1/chat/completions", "/v1/embeddings"):
        answer = ask(pair.port, "POST", path, BAD[name])
        assert answer.status == 400, answer.raw[:400]
        error = answer.error()
        assert error["type"] == "invalid_request_error"
        assert len(error["message"]) < 500
    assert not pair.engine.requests


def test_refused_in_the_shape_of_anthropic(pair: Pair) -> None:
    for name in ("open brace", "not utf-8", "model a number", "100,000 arrays deep"):
        answer = ask(pair.port, "POST", "/v1/messages", BAD[name])
        assert answer.status == 400
        value = answer.json()
        assert value["type"] == "error"
        assert value["error"]["type"] == "invalid_request_error"
    assert not pair.engine.requests


@pytest.mark.parametrize(
    "model",
    [
        "nope",
        "M",
        "m ",
        " m",
        "m\u0000",
        "m/../m",
        "größe",
        "\U0001f600",
        "x" * MIB,
        'a"b\\c\n\r\t\u2028',
        "<script>alert(1)</script>",
        "%s%n{0}{model}",
    ],
    ids=range(12),
)
def test_unknown_model_is_a_404_that_clients_can_read(pair: Pair, model: str) -> None:
    answer = ask(pair.port, "POST", "/v1/chat/completions", chat(model))
    assert answer.status == 404
    error = answer.error()
    assert error["code"] == "model_not_found"
    assert len(error["message"]) < 1000
    assert not pair.engine.requests


def test_lone_surrogate_as_model_is_a_4xx(pair: Pair) -> None:
    answer = ask(pair.port, "POST", "/v1/chat/completions", b'{"model":"\\ud800",' + MESSAGES + b"}")
    assert answer.status in (400, 404)
    assert answer.error()
    assert not pair.engine.requests


UNUSUAL: dict[str, bytes] = {
    "huge integer": b'{"model":"m","seed":' + b"9" * 4000 + b"," + MESSAGES + b"}",
    "huge exponent that the router does not read": b'{"model":"m","x":1e999999,' + MESSAGES + b"}",
    "escaped key": b'{"mod\\u0065l":"m",' + MESSAGES + b"}",
    "escaped model": b'{"model":"\\u006d",' + MESSAGES + b"}",
    "nulls": b'{"model":"m","stream":null,"stream_options":null,"max_tokens":null,' + MESSAGES + b"}",
    "inner duplicate": b'{"model":"m","x":{"model":"a","model":"b"},' + MESSAGES + b"}",
    "model named in a text": b'{"model":"m","messages":[{"role":"user","content":"\\"model\\":\\"x\\" \\u0041"}]}',
    "100 deep": b'{"model":"m","x":' + b"[" * 100 + b"]" * 100 + b"," + MESSAGES + b"}",
    "spaces": b' \t\r\n{ "model" : "m" , ' + MESSAGES + b" } \r\n",
    "max_tokens as a float": b'{"model":"m","max_tokens":5.0,' + MESSAGES + b"}",
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_but_right_bodies_reach_the_engine_unchanged(pair: Pair, name: str) -> None:
    answer = ask(pair.port, "POST", "/v1/chat/completions", UNUSUAL[name])
    # The fake engine's own JSON reader may refuse what the router rightly passed on; what it got is what counts.
    assert [request.body for request in pair.engine.requests] == [UNUSUAL[name]], answer.raw[:300]


# Size


def flood(client: RawClient, data: bytes) -> threading.Thread:
    thread = threading.Thread(target=client.send_tolerant, args=(data,))
    thread.start()
    return thread


@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_body_over_the_limit_is_413_and_memory_stays_bounded(pair: Pair, framing: str) -> None:
    body = b'{"model":"m","x":"' + b"a" * (20 * MIB) + b'"}'
    before = pair.router.resident_bytes()
    for _ in range(3):
        with RawClient(pair.port, limit=60) as client:
            if framing == "length":
                sending = flood(client, build("POST", "/v1/chat/completions", body))
            else:
                wire = build("POST", "/v1/chat/completions", None, "Transfer-Encoding: chunked")
                sending = flood(
                    client, wire + b"".join(chunk(body[at : at + MIB]) for at in range(0, len(body), MIB)) + LAST_CHUNK
                )
            answer = client.answer()
            assert answer.status == 413
            assert answer.error()["type"] == "invalid_request_error"
            client.close()
            sending.join(60)
    assert not pair.engine.requests
    assert pair.router.resident_bytes() - before < 64 * MIB


def test_a_length_of_two_gigabytes_is_refused_at_once(pair: Pair) -> None:
    with RawClient(pair.port) as client:
        client.send(build("POST", "/v1/chat/completions", None, f"Content-Length: {2**31}"))
        assert client.answer().status == 413
    assert not pair.engine.requests


@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_body_just_under_the_limit_passes_unchanged(pair: Pair, framing: str) -> None:
    body = b'{"model":"m",' + MESSAGES + b',"x":"' + b"a" * (15 * MIB) + b'"}'
    with RawClient(pair.port, limit=60) as client:
        if framing == "length":
            client.send(build("POST", "/v1/chat/completions", body))
        else:
            wire = build("POST", "/v1/chat/completions", None, "Transfer-Encoding: chunked")
            client.send(wire + b"".join(chunk(body[at : at + 99_991]) for at in range(0, len(body), 99_991)) + LAST_CHUNK)
        assert client.answer().status == 200
    assert pair.engine.requests[0].body == body


# Multipart


def form(*parts: bytes, boundary: bytes = b"BOUND") -> bytes:
    return b"".join(b"--" + boundary + b"\r\n" + part + b"\r\n" for part in parts) + b"--" + boundary + b"--\r\n"


MODEL_PART = b'Content-Disposition: form-data; name="model"\r\n\r\nm'
FILE_PART = (
    b'Content-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n'
    b"RIFF\x00\xff\r\n--BOUN\r\n"
)
MULTIPART = "Content-Type: multipart/form-data; boundary=BOUND"

BAD_FORMS: dict[str, tuple[str, bytes]] = {
    "no boundary": ("Content-Type: multipart/form-data", form(MODEL_PART, FILE_PART)),
    "another boundary": ("Content-Type: multipart/form-data; boundary=OTHER", form(MODEL_PART, FILE_PART)),
    "no model": (MULTIPART, form(FILE_PART)),
    "no parts": (MULTIPART, b"--BOUND--\r\n"),
    "empty": (MULTIPART, b""),
    "cut short": (MULTIPART, form(MODEL_PART, FILE_PART)[:40]),
    "two models": (MULTIPART, form(MODEL_PART, FILE_PART, MODEL_PART.replace(b"\r\n\r\nm", b"\r\n\r\nother"))),
    "model not utf-8": (MULTIPART, form(MODEL_PART[:-1] + b"\xff", FILE_PART)),
    "json": ("Content-Type: application/json", b'{"model":"m"}'),
}


@pytest.mark.parametrize("name", BAD_FORMS)
def test_bad_forms_are_refused_with_the_engine_untouched(pair: Pair, name: str) -> None:
    content_type, body = BAD_FORMS[name]
    answer = ask(pair.port, "POST", "/v1/audio/transcriptions", body, content_type)
    assert answer.status in (400, 415), answer.raw[:300]
    assert answer.error()["type"] == "invalid_request_error"
    assert not pair.engine.requests


@pytest.mark.parametrize("boundary", ["BOUND", '"BOUND"'])
def test_forms_reach_the_engine_unchanged(pair: Pair, boundary: str) -> None:
    for body in (form(MODEL_PART, FILE_PART), form(FILE_PART, MODEL_PART)):
        content_type = f"Content-Type: multipart/form-data; boundary={boundary}"
        ask(pair.port, "POST", "/v1/audio/transcriptions", body, content_type)
        request = pair.engine.requests[-1]
        assert request.body == body
        assert request.header("content-type") == f"multipart/form-data; boundary={boundary}"


# Fuzzing

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(["model", "stream", "stream_options", "max_tokens", "messages", "user", "prompt", "x"])
PLAIN = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)


@PLAIN
@given(body=st.binary(max_size=60) | st.text(max_size=40).map(str.encode))
def test_any_bytes_are_a_400(pair: Pair, body: bytes) -> None:
    answer = ask(pair.port, "POST", "/v1/completions", body)
    assert answer.status in (400, 404)
    assert answer.error()
    assert not pair.engine.requests


@PLAIN
@given(value=st.dictionaries(FIELDS, JSON, max_size=5))
def test_any_object_without_a_known_model_is_a_4xx(pair: Pair, value: dict[str, object]) -> None:
    if value.get("model") == "m":
        value["model"] = "n"
    answer = ask(pair.port, "POST", "/v1/completions", json.dumps(value).encode())
    assert answer.status in (400, 404)
    assert answer.error()
    assert not pair.engine.requests


@PLAIN
@given(data=st.data())
def test_any_damage_to_a_good_body_is_refused_or_passed_on_as_it_is(pair: Pair, data: st.DataObject) -> None:
    good = b'{"model":"m","stream":false,' + MESSAGES + b',"max_tokens":3}'
    at = data.draw(st.integers(0, len(good) - 1))
    damaged = good[:at] + data.draw(st.binary(max_size=3)) + good[at + data.draw(st.integers(0, 3)) :]
    seen = len(pair.engine.requests)
    answer = ask(pair.port, "POST", "/v1/chat/completions", damaged)
    passed = [request.body for request in pair.engine.requests[seen:]]
    if passed:
        assert passed == [damaged]
        json.loads(damaged)
    else:
        assert answer.status in (400, 404)
        assert answer.error()
