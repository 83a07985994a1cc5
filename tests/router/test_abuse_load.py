"""Clients that take too much: slow readers, too many connections, all at once. Memory stays bounded, others are served."""

from __future__ import annotations

import contextlib
import resource
import threading
import time
from collections import Counter

import pytest

from llmgw_testing.fake_engine import FakeEngine
from llmgw_testing.fake_openai import STREAM_HEAD, chunk, event
from llmgw_testing.fake_wire import Exchange, Gate
from llmgw_testing.raw_http import ClosedEarlyError, RawClient, ask, ask_chat, build, chat, metric
from llmgw_testing.router_process import RouterProcess
from llmgw_testing.wait import wait_until

MIB = 2**20
PIECE = chunk(event({"choices": [{"index": 0, "delta": {"content": "x" * 60_000}}]}))


def hold(engine: FakeEngine, gate: Gate) -> None:
    """The engine takes requests and answers them all once the gate is open."""

    async def script(exchange: Exchange) -> None:
        await exchange.wait(gate)
        await engine.engine.answer(exchange)

    engine.default = script


def test_slow_readers_cost_bounded_memory_and_nobody_else_anything() -> None:
    """20 clients with tiny windows that do not read, each in front of an endless stream."""
    sent = Counter[int]()

    async def endless(exchange: Exchange) -> None:
        await exchange.send(STREAM_HEAD)
        while True:
            await exchange.send(PIECE)
            sent[exchange.request.connection] += len(PIECE)
            await exchange.pause(0)

    with (
        FakeEngine("m") as engine,
        FakeEngine("other") as other,
        RouterProcess({"e1": (engine.url, ["m"]), "e2": (other.url, ["other"])}) as router,
    ):
        assert ask_chat(router.port, "other").status == 200
        before = router.resident_bytes()
        engine.default = endless
        clients = [RawClient(router.port, receive_buffer=4096) for _ in range(20)]
        for client in clients:
            client.send(build("POST", "/v1/chat/completions", chat(stream=True)))
        engine.wait_request(20)

        def stalled() -> bool:
            total = sum(sent.values())
            time.sleep(0.5)
            return sum(sent.values()) == total

        wait_until(stalled, within=30, what="the engine is held back by the slow readers")
        assert all(ask_chat(router.port, "other").status == 200 for _ in range(20))
        assert router.resident_bytes() - before < 40 * MIB
        left = time.monotonic()
        for client in clients:
            client.close()
        for request in engine.requests:
            assert engine.wait_closed(request) - left < 3
        wait_until(lambda: metric(router.port, "llmgw_router_replica_load") == 0, within=15, what="nothing in flight")


def test_slow_reader_gets_every_byte_in_the_end() -> None:
    pieces = [chunk(event({"choices": [{"delta": {"content": f"{number:06d}" + "x" * 5000}}]})) for number in range(1000)]

    async def script(exchange: Exchange) -> None:
        await exchange.send(STREAM_HEAD)
        for piece in pieces:
            await exchange.send(piece)
        await exchange.send(b"0\r\n\r\n")

    with FakeEngine("m") as engine, RouterProcess({"e1": (engine.url, ["m"])}) as router:
        engine.default = script
        with RawClient(router.port, receive_buffer=4096) as client:
            client.send(build("POST", "/v1/chat/completions", chat(stream=True)))
            engine.wait_request()
            time.sleep(0.3)  # not a synchronisation: the reader is meant to be slow
            answer = client.answer()
        numbers = [int(text[len('{"choices":[{"delta":{"content":"') :][:6]) for text in answer.events()]
        assert numbers == list(range(1000))


def test_pipelining_without_reading_costs_bounded_memory() -> None:
    """Clients that send request after request and never read an answer are not read any more."""
    with FakeEngine("m") as engine, RouterProcess({"e1": (engine.url, ["m"])}) as router:
        assert ask_chat(router.port).status == 200
        before = router.resident_bytes()
        batch = build("GET", "/v1/models") * 1000
        clients = [RawClient(router.port, limit=1, receive_buffer=4096) for _ in range(5)]
        for client in clients:
            accepted = 0
            while accepted < 200 * MIB and client.send_tolerant(batch):
                accepted += len(batch)
            assert accepted < 200 * MIB, "the router goes on reading"
        assert router.resident_bytes() - before < 30 * MIB
        assert ask_chat(router.port).status == 200
        for client in clients:
            client.close()


def test_too_few_file_descriptors_shed_load_and_recover() -> None:
    """64 descriptors, 150 clients: who gets an answer gets 200 or 503; afterwards all is as before."""
    with FakeEngine("m") as engine, RouterProcess({"e1": (engine.url, ["m"])}, open_files=64) as router:
        gate = Gate()
        hold(engine, gate)
        clients: list[RawClient] = []
        for _ in range(150):
            with contextlib.suppress(OSError):
                client = RawClient(router.port, limit=20)
                clients.append(client)
                client.send_tolerant(build("POST", "/v1/chat/completions", chat()))
        engine.wait_request(1)
        assert router.process.poll() is None
        gate.open()
        results = Counter[str]()
        for client in clients:
            try:
                results[str(client.answer().status)] += 1
            except (ClosedEarlyError, OSError):
                results["closed"] += 1
            client.close()
        assert results["200"] >= 5, results
        assert set(results) <= {"200", "503", "429", "closed"}, results
        assert results["503"] + results["429"] + results["closed"] > 0, results
        wait_until(lambda: _works(router.port), within=15, what="serving again")
        assert all(ask_chat(router.port).status == 200 for _ in range(50))


def _works(port: int) -> bool:
    try:
        return ask(port, "GET", "/health").status == 200 and ask_chat(port).status == 200
    except (OSError, ClosedEarlyError):
        return False


def test_silent_connections_do_not_keep_others_out() -> None:
    with FakeEngine("m") as engine, RouterProcess({"e1": (engine.url, ["m"])}) as router:
        silent = [RawClient(router.port) for _ in range(300)]
        assert all(ask_chat(router.port).status == 200 for _ in range(20))
        for client in silent:
            client.close()
        wait_until(lambda: _works(router.port), within=15, what="serving")


def test_connections_of_one_address_can_be_limited() -> None:
    limit = {"limits.connections_per_address": 5}
    with FakeEngine("m") as engine, RouterProcess({"e1": (engine.url, ["m"])}, settings=limit) as router:
        wait_until(lambda: _works(router.port), within=15, what="serving")
        held = [RawClient(router.port) for _ in range(5)]
        for client in held:
            client.send(build("GET", "/health"))
            assert client.answer().status == 200
        with RawClient(router.port) as sixth:
            sixth.send_tolerant(build("GET", "/health"))
            try:
                assert sixth.answer().status in (429, 503)
            except ClosedEarlyError as error:
                assert error.got == b""
        for client in held:
            client.close()
        wait_until(lambda: _works(router.port), within=15, what="serving again")


@pytest.mark.parametrize("policy", ["least_loaded", "prefix", "power_of_two", "round_robin", "consistent_hash"])
def test_a_hundred_equal_prompts_at_once_are_spread(policy: str) -> None:
    """The load is counted when a replica is chosen, so a burst does not go to one replica as a whole."""
    gate = Gate()
    with contextlib.ExitStack() as stack:
        engines = [stack.enter_context(FakeEngine("m")) for _ in range(4)]
        endpoints = {f"e{number}": (engine.url, ["m"]) for number, engine in enumerate(engines)}
        router = stack.enter_context(RouterProcess(endpoints, settings={"policy": policy}))
        for engine in engines:
            hold(engine, gate)
        body = build("POST", "/v1/chat/completions", chat(messages=[{"role": "user", "content": "A long prompt. " * 2000}]))
        clients = [RawClient(router.port, limit=30) for _ in range(100)]
        threads = [threading.Thread(target=client.send, args=(body,)) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        wait_until(lambda: sum(len(engine.requests) for engine in engines) == 100, within=30, what="all have arrived")
        counts = [len(engine.requests) for engine in engines]
        gate.open()
        assert all(client.answer().status == 200 for client in clients)
        for client in clients:
            client.close()
    assert max(counts) <= 50, counts


def test_the_open_file_limit_of_this_machine_is_enough_for_the_tests() -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft >= 1024, f"raise it: ulimit -n 4096 (now {soft})"
