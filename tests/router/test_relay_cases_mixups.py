"""No answer ever reaches another request: engines that send too much or too early, and many clients at once."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from llmgw_testing.fake_engine import FakeEngine
from llmgw_testing.fake_openai import LAST_CHUNK, STREAM_HEAD, chunk, event, head, json_reply, raw
from llmgw_testing.fake_wire import Exchange, Script
from llmgw_testing.raw_http import ClosedEarlyError, RawClient, ask_chat, build, chat, metric
from llmgw_testing.router_process import RouterProcess
from llmgw_testing.wait import wait_until

STALE = json_reply(200, {"stale": True})


@dataclass
class Pair:
    router: RouterProcess
    engine: FakeEngine

    @property
    def port(self) -> int:
        return self.router.port


@pytest.fixture(scope="module")
def running() -> Iterator[Pair]:
    settings = {"health.probe_all": "false", "health.failures": 100000, "health.panic_percent": 100}
    with FakeEngine("m") as engine, RouterProcess({"e1": (engine.url, ["m"])}, settings=settings) as router:
        yield Pair(router, engine)


@pytest.fixture
def pair(running: Pair) -> Pair:
    running.engine.reset_state()
    return running


TOO_MUCH: dict[str, bytes] = {
    "a second answer": json_reply(200, {"ok": 1}) + STALE,
    "more than the length says": json_reply(200, {"ok": 1}) + b"more",
    "more after the last chunk": head(200, "content-type: application/json", "transfer-encoding: chunked")
    + chunk(b'{"ok": 1}')
    + LAST_CHUNK
    + STALE,
    "a body with 204": head(204) + STALE,
    "a second answer after a stream": STREAM_HEAD + chunk(event("[DONE]")) + LAST_CHUNK + STALE,
}


@pytest.mark.parametrize("name", TOO_MUCH)
@pytest.mark.parametrize("late", [False, True])
def test_what_an_engine_sends_too_much_is_nobodys_answer(pair: Pair, name: str, late: bool) -> None:
    wire = TOO_MUCH[name]
    extra = len(wire) - len(STALE) if wire.endswith(STALE) else len(wire) - 4

    async def script(exchange: Exchange) -> None:
        if late:
            await exchange.send(wire[:extra])
            await exchange.pause(0.05)
            await exchange.send(wire[extra:])
        else:
            await exchange.send(wire)

    for _ in range(5):
        pair.engine.script(script)
        first = ask_chat(pair.port)
        assert first.status in (200, 204)
        assert b"stale" not in first.body
        if late:
            pair.engine.wait(lambda: pair.engine.open_connections() == 0, "a connection with stray bytes on it is closed")
        second = ask_chat(pair.port)
        assert second.status == 200
        assert second.json()["choices"][0]["message"]["content"] == "w0 w1 w2 w3 w4 "


def test_a_word_on_an_idle_connection_is_nobodys_answer(pair: Pair) -> None:
    """Servers say 408 before they close an idle connection."""

    async def script(exchange: Exchange) -> None:
        await pair.engine.engine.answer(exchange)
        await exchange.pause(0.05)
        await exchange.send(json_reply(408, {"stale": True}, "connection: close"))
        exchange.close()

    for _ in range(5):
        pair.engine.script(script)
        assert ask_chat(pair.port).status == 200
        pair.engine.wait(lambda: pair.engine.requests[-1].finished.is_set(), "the engine has said it")
        assert ask_chat(pair.port).status == 200


def test_an_engine_that_answers_before_it_has_read_the_body_is_heard(pair: Pair) -> None:
    """It refuses a large body from the head alone and closes; its refusal is the answer, not a 502."""
    refusal = {"error": {"message": "too long", "type": "invalid_request_error", "param": None, "code": "x"}}
    pair.engine.refuse_bodies = json_reply(400, refusal, "connection: close")
    try:
        answer = ask_chat(pair.port, messages=[{"role": "user", "content": "x" * 8_000_000}])
        assert (answer.status, answer.json()) == (400, refusal)
    finally:
        pair.engine.refuse_bodies = None


@pytest.mark.parametrize(
    "wire",
    [
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nbytes",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 5000,
    ],
    ids=["an upgrade nobody asked for", "100 for ever"],
)
def test_answers_without_an_end_are_a_502(pair: Pair, wire: bytes) -> None:
    script: Script = raw(wire, close=True)
    pair.engine.default = script
    assert ask_chat(pair.port).status == 502


def test_a_thousand_requests_of_many_clients_each_get_their_own_answer(pair: Pair) -> None:
    """Plain, streamed, broken off and abandoned requests in a random mixture; every answer carries its request's number."""
    source = random.Random(11)

    async def echo(exchange: Exchange) -> None:
        body = exchange.request.json()
        number = body["user"]
        choice = body["seed"]
        if choice == 0:
            exchange.reset()
            return
        if body.get("stream"):
            await exchange.send(STREAM_HEAD)
            for _ in range(5):
                await exchange.send(chunk(event({"choices": [{"delta": {"content": number}}]})))
                await exchange.pause(0.001)
            if choice == 1:
                exchange.reset()
                return
            await exchange.send(chunk(event("[DONE]")) + LAST_CHUNK)
        else:
            await exchange.pause(0.002)
            await exchange.send(json_reply(200, {"number": number}))

    pair.engine.default = echo
    wrong: list[str] = []
    answered = 0
    lock = threading.Lock()

    def client(worker: int, choices: list[tuple[bool, int]]) -> None:
        nonlocal answered
        connection = RawClient(pair.port, limit=30)
        for number, (streaming, choice) in enumerate(choices):
            name = f"{worker}-{number}-"
            connection.send(build("POST", "/v1/chat/completions", chat(user=name, seed=choice, stream=streaming)))
            if choice == 2:
                connection.close()
                connection = RawClient(pair.port, limit=30)
                continue
            try:
                answer = connection.stream_to_end()
            except ClosedEarlyError:
                wrong.append(f"{name}: closed without a word")
                continue
            with lock:
                answered += answer.status == 200
            others = answer.status == 200 and (
                {text for text in answer.events() if name not in text and text != "[DONE]" and '"error"' not in text}
                if streaming
                else name not in answer.body.decode()
            )
            if others:
                wrong.append(f"{name} got {answer.body!r}")
            if (
                ("connection", "close") in [(key.lower(), value.lower()) for key, value in answer.headers]
                or not answer.complete
                or choice == 1
            ):
                connection.close()
                connection = RawClient(pair.port, limit=30)
        connection.close()

    plans = [[(source.random() < 0.5, source.randrange(10)) for _ in range(40)] for _ in range(25)]
    threads = [threading.Thread(target=client, args=(worker, plan)) for worker, plan in enumerate(plans)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong, wrong[:5]
    assert answered >= sum(choice > 2 for plan in plans for _, choice in plan)
    wait_until(lambda: metric(pair.port, "llmgw_router_replica_load") == 0, within=15, what="nothing in flight")
