"""The client API as a whole: which paths reach the engine, which headers and fields survive, who may ask."""

from __future__ import annotations

import base64
import hashlib
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from llmgw_testing.fake_engine import FakeEngine
from llmgw_testing.fake_openai import json_reply, raw, reply
from llmgw_testing.fake_wire import Exchange
from llmgw_testing.raw_http import RawClient, ask, ask_chat, build, chat, parse_answer_head
from llmgw_testing.router_process import RouterProcess
from llmgw_testing.wait import wait_until

KEY = "sk-1"
ENGINE_KEY = "engine-1"


@dataclass
class Setup:
    router: RouterProcess
    engine: FakeEngine
    free: RouterProcess
    """The same without API keys."""

    @property
    def port(self) -> int:
        return self.router.port


@pytest.fixture(scope="module")
def running() -> Iterator[Setup]:
    with FakeEngine("m", api_key=ENGINE_KEY) as engine:
        endpoints = {"e1": (f"http://:{ENGINE_KEY}@127.0.0.1:{engine.port}", ["m", "org/größe"])}
        with RouterProcess(endpoints, keys={"client": KEY}) as router, RouterProcess(endpoints) as free:
            yield Setup(router, engine, free)


@pytest.fixture
def setup(running: Setup) -> Setup:
    running.engine.reset_state()
    return running


JSON_PATHS = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/rerank",
    "/v2/rerank",
    "/rerank",
    "/v1/score",
    "/score",
    "/pooling",
    "/classify",
    "/tokenize",
    "/detokenize",
    "/v1/audio/speech",
    "/v1/images/generations",
    "/v1/moderations",
]
FORM_PATHS = ["/v1/audio/transcriptions", "/v1/audio/translations", "/v1/images/edits"]


@pytest.mark.parametrize("path", JSON_PATHS)
def test_path_reaches_the_engine_with_the_engines_key_only(setup: Setup, path: str) -> None:
    setup.engine.script(reply(200, {"answer": path}, "x-engine: yes"))
    answer = ask(setup.port, "POST", path, {"model": "m", "input": "x", "messages": [], "prompt": "x"}, key=KEY)
    assert answer.json() == {"answer": path}
    assert answer.header("x-engine") == "yes"
    (request,) = setup.engine.requests
    assert request.path == path
    assert request.values("authorization") == [f"Bearer {ENGINE_KEY}"]
    assert KEY.encode() not in request.raw


@pytest.mark.parametrize("path", FORM_PATHS)
def test_form_reaches_the_engine_unchanged(setup: Setup, path: str) -> None:
    body = (
        b'--B\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n\x00\xff\r\n'
        b'--B\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--B--\r\n'
    )
    setup.engine.script(reply(200, {"text": "hello"}))
    answer = ask(setup.port, "POST", path, body, "Content-Type: multipart/form-data; boundary=B", key=KEY)
    assert answer.json() == {"text": "hello"}
    assert setup.engine.requests[0].body == body


def test_keys_are_demanded_in_all_their_forms(setup: Setup) -> None:
    body = chat()
    path = "/v1/chat/completions"
    for good in (f"Authorization: Bearer {KEY}", f"authorization: bearer {KEY}", f"x-api-key: {KEY}", f"api-key: {KEY}"):
        assert ask(setup.port, "POST", path, body, good).status == 200, good
    seen = len(setup.engine.requests)
    for bad in (
        "X-Nothing: 1",
        "Authorization: Bearer",
        "Authorization: Bearer wrong",
        f"Authorization: Bearer {KEY}x",
        f"Authorization: Bearer {KEY[:-1]}",
        f"Authorization: Basic {KEY}",
        f"Authorization: {KEY}",
        "Authorization: Bearer \xff\xfe",
        "x-api-key: wrong",
    ):
        answer = ask(setup.port, "POST", path, body, bad)
        assert answer.status == 401, bad
        assert answer.error()["type"] == "authentication_error"
    for method, target in (("GET", "/v1/models"), ("GET", "/v1/models/m"), ("POST", "/tokenize"), ("POST", "/v1/messages")):
        assert ask(setup.port, method, target, body if method == "POST" else None).status == 401, target
    assert ask(setup.port, "GET", "/health").status == 200
    assert ask(setup.port, "GET", "/metrics").status == 200
    assert len(setup.engine.requests) == seen
    assert KEY not in setup.router.log()


def test_a_key_counts_for_its_own_request_only(setup: Setup) -> None:
    """On one connection, as behind a load balancer that shares its connections between clients."""
    with RawClient(setup.port) as client:
        for key, status in [(KEY, 200), (KEY, 200), ("sk-2", 401), (KEY, 200), (None, 401), ("sk-1 ", 200), (KEY[:-1], 401)]:
            client.send(build("POST", "/v1/chat/completions", chat(), key=key))
            answer = client.answer()
            assert answer.status == status, key
            assert answer.header("connection") is None, "the whole request is in, so the connection can stay"


def test_without_keys_everybody_is_served_and_the_start_line_says_so(setup: Setup) -> None:
    assert ask_chat(setup.free.port).status == 200
    assert ask_chat(setup.free.port, key="anything").status == 200
    first = next(line for line in setup.free.log().splitlines() if "listening" in line)
    assert "key" in first.lower()
    assert b"anything" not in setup.engine.requests[-1].raw


def test_models_are_merged_and_unknown_fields_kept(setup: Setup) -> None:
    card = {"id": "m", "object": "model", "owned_by": "vllm", "max_model_len": 4096, "odd": {"x": [1]}}
    with FakeEngine("m") as engine, FakeEngine("other") as other:
        engine.probe = raw(json_reply(200, {"object": "list", "data": [card]}))
        endpoints = {"e1": (engine.url, ["m"]), "e2": (other.url, ["other"])}
        with RouterProcess(endpoints, settings={"health.probe_seconds": 0.2}) as router:

            def odd() -> object:
                return {item["id"]: item for item in ask(router.port, "GET", "/v1/models").json()["data"]}["m"].get("odd")

            wait_until(lambda: odd() == {"x": [1]}, within=15, what="the engine's own card")
            listing = ask(router.port, "GET", "/v1/models").json()
            assert listing["object"] == "list"
            cards = {item["id"]: item for item in listing["data"]}
            assert set(cards) == {"m", "other"}
            assert cards["m"]["max_model_len"] == 4096
            assert ask(router.port, "GET", "/v1/models/m").json() == cards["m"]


def test_request_ids_go_in_and_out(setup: Setup) -> None:
    answer = ask(setup.port, "POST", "/v1/chat/completions", chat(), "x-request-id: abc-123", key=KEY)
    assert answer.header("x-request-id") == "abc-123"
    assert setup.engine.requests[0].header("x-request-id") == "abc-123"
    made = {ask_chat(setup.port, key=KEY).header("x-request-id") for _ in range(5)}
    assert len(made) == 5
    assert None not in made
    refused = ask(setup.port, "POST", "/v1/chat/completions", b"{", "x-request-id: abc-124", key=KEY)
    assert refused.header("x-request-id") == "abc-124"
    for evil in ("a" * 5000, "a b", 'a"b', "\xff"):
        answer = ask(setup.port, "POST", "/v1/chat/completions", chat(), f"x-request-id: {evil}", key=KEY)
        assert answer.header("x-request-id") != evil
        assert setup.engine.requests[-1].header("x-request-id") == answer.header("x-request-id")


def test_browsers_may_call(setup: Setup) -> None:
    answer = ask(setup.port, "POST", "/v1/chat/completions", chat(), "Origin: https://app.example", key=KEY)
    assert answer.header("access-control-allow-origin") in ("*", "https://app.example")
    refused = ask(setup.port, "POST", "/v1/chat/completions", chat(), "Origin: https://app.example")
    assert refused.status == 401
    assert refused.header("access-control-allow-origin") in ("*", "https://app.example")


def test_streams_are_marked_so_that_nothing_in_between_holds_them_back(setup: Setup) -> None:
    answer = ask_chat(setup.port, key=KEY, stream=True)
    assert (answer.header("content-type") or "").startswith("text/event-stream")
    assert answer.events()[-1] == "[DONE]"


# Websocket

SWITCHING = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"


def accept_key(key: str) -> str:
    return base64.b64encode(hashlib.sha1(key.encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()).decode()


def frame(payload: bytes, mask: bytes = b"\x01\x02\x03\x04") -> bytes:
    masked = bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))
    return struct.pack("!BBH", 0x82, 0x80 | 126, len(payload)) + mask + masked


def test_realtime_websocket_is_relayed_both_ways(setup: Setup) -> None:
    key = base64.b64encode(os.urandom(16)).decode()
    to_engine, to_client = frame(b"from the client" * 50), b"\x82\x05hello"

    async def engine_side(exchange: Exchange) -> None:
        wire = SWITCHING + f"Sec-WebSocket-Accept: {accept_key(key)}\r\n\r\n".encode()
        await exchange.send(wire + to_client[:3])
        await exchange.pause(0.01)
        await exchange.send(to_client[3:])
        data = await exchange.receive(len(to_engine))
        await exchange.send(b"\x82" + bytes([len(data) % 100]) + data[: len(data) % 100])
        exchange.close()

    setup.engine.script(engine_side)
    headers = ["Upgrade: websocket", "Connection: Upgrade", f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13"]
    with RawClient(setup.port) as client:
        client.send(build("GET", "/v1/realtime?model=m", None, *headers, key=KEY))
        status, found = parse_answer_head(client.receive_until(b"\r\n\r\n"))
        assert status == 101
        assert {name.lower(): value for name, value in found}["sec-websocket-accept"] == accept_key(key)
        assert client.receive_exactly(len(to_client)) == to_client
        client.send(to_engine[:10])
        client.send(to_engine[10:])
        size = len(to_engine) % 100
        assert client.receive_exactly(2 + size) == b"\x82" + bytes([size]) + to_engine[:size]
        assert client.closed_by_peer()
    (request,) = setup.engine.requests
    assert request.values("authorization") == [f"Bearer {ENGINE_KEY}"]
    assert KEY.encode() not in request.raw


def test_realtime_needs_a_key_an_upgrade_and_a_model(setup: Setup) -> None:
    headers = [
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
        "Sec-WebSocket-Version: 13",
    ]
    assert ask(setup.port, "GET", "/v1/realtime?model=m", None, *headers).status == 401
    assert ask(setup.port, "GET", "/v1/realtime?model=nope", None, *headers, key=KEY).status == 404
    assert ask(setup.port, "GET", "/v1/realtime", None, *headers, key=KEY).status in (400, 404)
    assert ask(setup.port, "GET", "/v1/realtime?model=m", None, key=KEY).status in (400, 426)
    assert not setup.engine.requests


def test_realtime_client_that_leaves_frees_the_engine(setup: Setup) -> None:
    async def engine_side(exchange: Exchange) -> None:
        await exchange.send(SWITCHING + b"\r\n")
        await exchange.silence()

    setup.engine.script(engine_side)
    headers = [
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
        "Sec-WebSocket-Version: 13",
    ]
    with RawClient(setup.port) as client:
        client.send(build("GET", "/v1/realtime?model=m", None, *headers, key=KEY))
        client.receive_until(b"\r\n\r\n")
    setup.engine.wait_closed(setup.engine.requests[0], 3)
