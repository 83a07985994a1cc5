"""Engines and clients that fail in the middle: what the other side sees, and that nothing is done twice."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from llmgw_testing.fake_engine import FakeEngine
from llmgw_testing.fake_openai import (
    STREAM_HEAD,
    chat_events,
    chunk,
    close_at_once,
    error_reply,
    event,
    head,
    message_events,
    raw,
    reply,
    reset_after,
    silent,
    stream,
)
from llmgw_testing.fake_wire import Exchange, Gate, Script
from llmgw_testing.raw_http import RawClient, ask, ask_chat, build, chat, metric
from llmgw_testing.router_process import RouterProcess
from llmgw_testing.wait import wait_until

FIRST_BYTE = 1.0
CLOSE_SECONDS = 1.0
SETTINGS = {
    "timeouts.first_byte": FIRST_BYTE,
    "timeouts.idle": 1.5,
    # Failures are made on purpose here; ejection is tested elsewhere.
    "health.failures": 1000,
    "health.probe_all": "false",
    "health.panic_percent": 100,
}


@dataclass
class Trio:
    """One router; model `m` has two replicas that take turns, `solo` has one."""

    router: RouterProcess
    one: FakeEngine
    two: FakeEngine
    solo: FakeEngine

    @property
    def port(self) -> int:
        return self.router.port

    def script_both(self, script: Script) -> None:
        """Whichever is asked first gets the script; the other one then answers as normal."""
        used = [script]

        async def once(exchange: Exchange) -> None:
            await (used.pop() if used else self.one.engine.answer)(exchange)

        self.one.default = self.two.default = once

    def seen(self) -> int:
        return len(self.one.requests) + len(self.two.requests)


@pytest.fixture(scope="module")
def running() -> Iterator[Trio]:
    with FakeEngine("m") as one, FakeEngine("m") as two, FakeEngine("solo") as solo:
        endpoints = {"e1": (one.url, ["m"]), "e2": (two.url, ["m"]), "e3": (solo.url, ["solo"])}
        with RouterProcess(endpoints, keys={"client": "sk-1"}, settings={**SETTINGS, "policy": "round_robin"}) as router:
            yield Trio(router, one, two, solo)


@pytest.fixture
def trio(running: Trio) -> Trio:
    for engine in (running.one, running.two, running.solo):
        engine.reset_state()
    return running


def in_flight(port: int) -> float:
    return metric(port, "llmgw_router_replica_load")


def idle(trio: Trio) -> None:
    wait_until(lambda: in_flight(trio.port) == 0, within=15, what="nothing in flight")


def post(trio: Trio, model: str = "m", **fields: object) -> bytes:
    return build("POST", "/v1/chat/completions", chat(model, **fields), key="sk-1")


# Before the first byte: one more try


def test_silent_engine_is_given_up_and_the_other_one_answers(trio: Trio) -> None:
    trio.script_both(silent())
    began = time.monotonic()
    answer = ask_chat(trio.port, key="sk-1")
    assert answer.status == 200
    assert time.monotonic() - began >= FIRST_BYTE * 0.9
    first = min(trio.one.requests + trio.two.requests, key=lambda request: request.arrived_at)
    assert first.closed.wait(5), "the silent engine's connection was kept"
    assert trio.seen() == 2
    idle(trio)


def test_only_silent_engines_is_a_504_in_time(trio: Trio) -> None:
    trio.solo.default = silent()
    answer = ask_chat(trio.port, "solo", key="sk-1")
    assert answer.status == 504
    assert answer.error()["type"] == "server_error"
    assert trio.solo.requests[0].closed.wait(5)
    idle(trio)


@pytest.mark.parametrize("status", [502, 503, 529])
@pytest.mark.parametrize("streaming", [False, True])
def test_unavailable_engine_is_followed_by_one_retry(trio: Trio, status: int, streaming: bool) -> None:
    trio.script_both(error_reply(status))
    before = metric(trio.port, "llmgw_router_retries_total")
    answer = ask_chat(trio.port, key="sk-1", stream=streaming)
    assert answer.status == 200
    assert trio.seen() == 2
    assert len(trio.one.requests) == 1, "the retry must go to the other replica"
    assert metric(trio.port, "llmgw_router_retries_total") - before == 1


def test_unavailable_everywhere_is_tried_twice_and_told(trio: Trio) -> None:
    trio.one.default = trio.two.default = error_reply(503, "overloaded, says the engine", "retry-after: 7")
    answer = ask_chat(trio.port, key="sk-1")
    assert answer.status == 503
    assert answer.json()["error"]["message"]
    assert trio.seen() == 2


@pytest.mark.parametrize("status", [400, 401, 404, 408, 422, 429, 500, 501])
def test_other_errors_of_the_engine_pass_unchanged_and_are_not_retried(trio: Trio, status: int) -> None:
    value = {"object": "error", "message": "no", "type": "BadRequestError", "code": status, "odd": "ž"}
    trio.one.default = trio.two.default = reply(status, value, "retry-after: 7", "x-odd: kept")
    answer = ask_chat(trio.port, key="sk-1", stream=True)
    assert answer.status == status
    assert answer.json() == value
    assert answer.header("x-odd") == "kept"
    assert answer.header("retry-after") == "7"
    assert trio.seen() == 1


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("how", [close_at_once(), reset_after(settle=0.0)], ids=["closed", "reset"])
def test_engine_that_hangs_up_without_a_byte_is_followed_by_one_retry(trio: Trio, how: Script, streaming: bool) -> None:
    trio.script_both(how)
    answer = ask_chat(trio.port, key="sk-1", stream=streaming)
    assert answer.status == 200
    assert trio.seen() == 2


def test_engine_that_hangs_up_always_is_a_502_after_two_tries(trio: Trio) -> None:
    trio.one.default = trio.two.default = close_at_once()
    answer = ask_chat(trio.port, key="sk-1")
    assert answer.status == 502
    assert answer.error()["type"] == "server_error"
    # A kept connection that was closed is replaced by a new one to the same engine, which does not count as the retry.
    assert trio.seen() in (2, 3)


def test_engine_that_is_down_is_a_retry_for_one_and_a_503_for_all(trio: Trio) -> None:
    with FakeEngine("d") as up, FakeEngine("d") as down:
        down_url = down.url
        down.stop()
        endpoints = {"up": (up.url, ["d"]), "down": (down_url, ["d"]), "gone": (down_url, ["gone"])}
        settings = {**SETTINGS, "policy": "round_robin"}
        with RouterProcess(endpoints, settings=settings) as router:
            assert [ask_chat(router.port, "d").status for _ in range(6)] == [200] * 6
            answer = ask_chat(router.port, "gone")
            assert answer.status == 503
            assert answer.error()["message"]


FIRST_ERRORS = {
    "openai": event({"error": {"message": "CUDA out of memory", "type": "server_error", "code": 500}}),
    "vllm": event({"object": "error", "message": "engine dead", "type": "InternalServerError", "code": 500}),
    "named": b'event: error\ndata: {"error":{"message":"x","code":500}}\n\n',
}


@pytest.mark.parametrize("name", FIRST_ERRORS)
@pytest.mark.parametrize("cut", [False, True])
def test_stream_that_begins_with_an_error_goes_to_the_other_replica(trio: Trio, name: str, cut: bool) -> None:
    first = FIRST_ERRORS[name]
    parts = [first[:9], first[9:]] if cut else [first]
    trio.script_both(stream([*parts, event("[DONE]")], pause=0.01))
    answer = ask_chat(trio.port, key="sk-1", stream=True)
    assert answer.status == 200
    assert answer.body == b"".join(chat_events("m", [f"w{i} " for i in range(5)], include_usage=False))
    assert trio.seen() == 2


def test_stream_that_begins_with_an_error_everywhere_is_told_and_counted_as_failure(trio: Trio) -> None:
    first = FIRST_ERRORS["openai"]
    trio.solo.default = stream([first, event("[DONE]")])
    before = metric(trio.port, "llmgw_router_requests_total", model="solo", code="200")
    failed = metric(trio.port, "llmgw_router_engine_failures_total", replica="e3")
    with RawClient(trio.port) as client:
        client.send(post(trio, "solo", stream=True))
        answer = client.stream_to_end()
    assert b"CUDA out of memory" in answer.body
    assert metric(trio.port, "llmgw_router_requests_total", model="solo", code="200") == before
    assert metric(trio.port, "llmgw_router_engine_failures_total", replica="e3") > failed


# Kept connections


def test_kept_connection_that_the_engine_closed_costs_the_client_nothing(trio: Trio) -> None:
    for _ in range(30):
        assert ask_chat(trio.port, "solo", key="sk-1").status == 200
        trio.solo.close_idle()
    assert len(trio.solo.requests) == 30


@pytest.mark.parametrize("how", [close_at_once(), reset_after(settle=0.0)], ids=["closed", "reset"])
def test_kept_connection_that_dies_under_the_request_is_replaced_once(trio: Trio, how: Script) -> None:
    assert ask_chat(trio.port, "solo", key="sk-1").status == 200
    opened = trio.solo.connections_opened
    trio.solo.script(how)
    assert ask_chat(trio.port, "solo", key="sk-1").status == 200
    assert trio.solo.connections_opened == opened + 1
    assert trio.solo.requests[1].connection != trio.solo.requests[2].connection


def test_engine_that_closes_after_each_answer_is_no_trouble(trio: Trio) -> None:
    async def once(exchange: Exchange) -> None:
        await trio.solo.engine.answer(exchange)
        exchange.close()

    trio.solo.default = once
    with RawClient(trio.port) as client:
        for _ in range(20):
            client.send(post(trio, "solo"))
            assert client.answer().status == 200


# After the first byte: told, never repeated


BREAKS: dict[str, Callable[[list[bytes]], Script]] = {
    "reset": lambda writes: reset_after(*writes),
    "closed": lambda writes: raw(*writes, close=True),
    "garbage": lambda writes: raw(*writes, b"zz\r\nnot a chunk", close=True),
    "garbage in the same write": lambda writes: raw(b"".join(writes) + b"zz\r\nnot a chunk", close=True),
}


@pytest.mark.parametrize("how", BREAKS)
def test_stream_that_breaks_ends_with_an_error_event_and_never_with_done(trio: Trio, how: str) -> None:
    events = chat_events("m", ["a", "b", "c", "d"])[:3]
    trio.script_both(BREAKS[how]([STREAM_HEAD, *map(chunk, events)]))
    before = metric(trio.port, "llmgw_router_tokens_estimated_total")
    with RawClient(trio.port) as client:
        client.send(post(trio, stream=True))
        answer = client.stream_to_end()
    assert answer.status == 200
    assert answer.body.startswith(b"".join(events))
    rest = answer.body[len(b"".join(events)) :]
    error = json.loads(rest.removeprefix(b"data: "))["error"]
    assert error["message"]
    assert error["type"] == "server_error"
    assert b"[DONE]" not in answer.body
    assert trio.seen() == 1, "a stream that had begun was repeated"
    assert metric(trio.port, "llmgw_router_tokens_estimated_total") > before, "delivered tokens were not settled"
    idle(trio)


def test_anthropic_and_responses_streams_break_in_their_own_way(trio: Trio) -> None:
    begun = message_events("solo", ["a", "b"])[:3]
    trio.solo.script(reset_after(STREAM_HEAD, *map(chunk, begun)))
    body = {"model": "solo", "max_tokens": 9, "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
    with RawClient(trio.port) as client:
        client.send(build("POST", "/v1/messages", body, "x-api-key: sk-1"))
        answer = client.stream_to_end()
    rest = answer.body[len(b"".join(begun)) :]
    assert rest.startswith(b"event: error\ndata: ")
    assert json.loads(rest.split(b"data: ")[1])["type"] == "error"
    assert b"message_stop" not in answer.body

    created = b'event: response.created\ndata: {"type":"response.created","response":{"id":"r"}}\n\n'
    trio.solo.script(reset_after(STREAM_HEAD, chunk(created)))
    with RawClient(trio.port) as client:
        client.send(build("POST", "/v1/responses", {"model": "solo", "input": "Hi", "stream": True}, key="sk-1"))
        answer = client.stream_to_end()
    assert json.loads(answer.events()[-1])["type"] == "error"
    assert b"response.completed" not in answer.body


def test_half_an_event_is_never_the_end_of_a_stream(trio: Trio) -> None:
    """The break comes inside an event: the error event must still be an event of its own."""
    events = chat_events("m", ["a", "b"])
    trio.solo.script(reset_after(STREAM_HEAD, chunk(events[0]), chunk(events[1][:20])))
    with RawClient(trio.port) as client:
        client.send(post(trio, "solo", stream=True))
        answer = client.stream_to_end()
    assert answer.body.startswith(events[0])
    assert "error" in json.loads(answer.events()[-1])
    assert b"[DONE]" not in answer.body


def test_stream_that_stalls_is_broken_off_at_the_idle_limit(trio: Trio) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.send(STREAM_HEAD + chunk(chat_events("m", ["a"])[1]))
        await exchange.silence()

    trio.solo.script(script)
    with RawClient(trio.port) as client:
        client.send(post(trio, "solo", stream=True))
        answer = client.stream_to_end()
    assert "error" in json.loads(answer.events()[-1])
    assert trio.solo.requests[0].closed.wait(5)


def test_json_answer_that_breaks_is_never_a_whole_answer(trio: Trio) -> None:
    trio.script_both(reset_after(head(200, "content-type: application/json", "content-length: 100"), b'{"choices":'))
    with RawClient(trio.port) as client:
        client.send(post(trio))
        answer = client.stream_to_end()
    assert not answer.complete or answer.status >= 500
    assert trio.seen() == 1
    idle(trio)


@pytest.mark.parametrize(
    "wire",
    [
        b"hello\r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nabcdef",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nbad header\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 2_000_000 + b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
    ids=["no http", "status", "two lengths", "length and chunks", "no colon", "endless head", "tls"],
)
def test_engine_that_speaks_no_http_is_a_502(trio: Trio, wire: bytes) -> None:
    trio.solo.default = raw(wire, close=True)
    answer = ask_chat(trio.port, "solo", key="sk-1")
    assert answer.status == 502, answer.raw[:300]
    assert answer.error()["type"] == "server_error"
    trio.solo.reset_state()
    assert ask_chat(trio.port, "solo", key="sk-1").status == 200


# Clients that leave


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("streaming", [False, True])
def test_client_that_leaves_before_the_first_byte_frees_the_engine(trio: Trio, streaming: bool, how: str) -> None:
    trio.solo.default = silent()
    before = metric(trio.port, "llmgw_router_requests_total", code="499")
    client = RawClient(trio.port)
    client.send(post(trio, "solo", stream=streaming))
    request = trio.solo.wait_request()
    left = time.monotonic()
    if how == "close":
        client.close()
    else:
        client.reset()
    assert trio.solo.wait_closed(request) - left < CLOSE_SECONDS
    wait_until(
        lambda: metric(trio.port, "llmgw_router_requests_total", code="499") == before + 1, within=15, what="settled as 499"
    )
    idle(trio)


def test_client_that_leaves_mid_stream_frees_the_engine_and_pays_what_it_got(trio: Trio) -> None:
    gate = Gate()
    events = chat_events("solo", ["a", "b", "c"])

    async def script(exchange: Exchange) -> None:
        await exchange.send(STREAM_HEAD + b"".join(map(chunk, events[:3])))
        await exchange.wait(gate)

    trio.solo.script(script)
    before = metric(trio.port, "llmgw_router_tokens_estimated_total", model="solo")
    with RawClient(trio.port) as client:
        client.send(post(trio, "solo", stream=True))
        client.receive_until(b'"b"')
        request = trio.solo.wait_request()
        left = time.monotonic()
    assert trio.solo.wait_closed(request) - left < CLOSE_SECONDS
    gate.open()
    wait_until(
        lambda: metric(trio.port, "llmgw_router_tokens_estimated_total", model="solo") > before,
        within=15,
        what="tokens settled",
    )
    idle(trio)


def test_client_that_leaves_while_sending_its_body_never_reaches_the_engine(trio: Trio) -> None:
    for cut in (40, 120, -1):
        with RawClient(trio.port) as client:
            client.send(post(trio, "solo")[:cut])
    assert ask_chat(trio.port, "solo", key="sk-1").status == 200
    assert len(trio.solo.requests) == 1


def test_many_clients_that_leave_leak_nothing(trio: Trio) -> None:
    trio.solo.default = silent()
    for _ in range(5):
        clients = [RawClient(trio.port) for _ in range(20)]
        for client in clients:
            client.send(post(trio, "solo", stream=True))
        trio.solo.wait(lambda: len(trio.solo.requests) % 20 == 0 and len(trio.solo.requests) > 0, "all have arrived")
        for client in clients:
            client.close()
        for request in trio.solo.requests:
            trio.solo.wait_closed(request)
    idle(trio)
    trio.solo.reset_state()
    assert ask(trio.port, "GET", "/health").status == 200
    assert ask_chat(trio.port, "solo", key="sk-1").status == 200
