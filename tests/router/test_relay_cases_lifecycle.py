"""Starting, stopping, dying: of the router, of its workers and of the engines behind it."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from llmgw_router.__main__ import main
from llmgw_testing.fake_engine import FakeEngine
from llmgw_testing.fake_openai import STREAM_HEAD, chat_events, chunk
from llmgw_testing.fake_wire import Exchange, Gate
from llmgw_testing.raw_http import ClosedEarlyError, RawClient, Streamed, ask, ask_chat, build, chat, metric
from llmgw_testing.router_process import RouterProcess
from llmgw_testing.wait import wait_until

STREAM = build("POST", "/v1/chat/completions", chat(stream=True))
EVENTS = chat_events("m", ["a", "b", "c"], include_usage=False)


def gated(engine: FakeEngine, gate: Gate) -> None:
    """Streams begin at once and end when the gate opens."""

    async def script(exchange: Exchange) -> None:
        await exchange.send(STREAM_HEAD + b"".join(map(chunk, EVENTS[:2])))
        await exchange.wait(gate)
        await exchange.send(b"".join(map(chunk, EVENTS[2:])) + b"0\r\n\r\n")

    engine.default = script


def open_streams(port: int, count: int) -> list[RawClient]:
    clients = [RawClient(port, limit=30) for _ in range(count)]
    for client in clients:
        client.send(STREAM)
    return clients


class Reader(threading.Thread):
    """Reads one stream to its end, in the background."""

    def __init__(self, client: RawClient) -> None:
        super().__init__()
        self.client = client
        self.result: Streamed | None = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self.client.stream_to_end()
        except ClosedEarlyError:
            self.result = Streamed(0, [], b"", False)
        self.client.close()

    def end(self) -> Streamed:
        self.join(40)
        assert self.result is not None, "the stream never ended"
        return self.result


def health(port: int) -> int:
    try:
        return ask(port, "GET", "/health").status
    except (OSError, ClosedEarlyError):
        return 0


def test_sigterm_under_load_finishes_what_is_in_flight() -> None:
    gate = Gate()
    settings = {"drain.lame_duck_seconds": 1.5, "drain.seconds": 15}
    with FakeEngine("m") as engine, RouterProcess({"e1": (engine.url, ["m"])}, settings=settings) as router:
        gated(engine, gate)
        readers = [Reader(client) for client in open_streams(router.port, 20)]
        engine.wait_request(20)
        with RawClient(router.port) as kept:
            kept.send(build("GET", "/health"))
            assert kept.answer().status == 200
            router.process.send_signal(signal.SIGTERM)
            wait_until(lambda: health(router.port) == 503, within=1.4, what="not ready at once")
        # New requests are still taken while load balancers have not noticed yet.
        late = [Reader(client) for client in open_streams(router.port, 3)]
        engine.wait_request(23)
        assert router.process.poll() is None
        gate.open()
        for reader in readers + late:
            answer = reader.end()
            assert (answer.status, answer.complete, answer.body) == (200, True, b"".join(EVENTS))
        assert router.process.wait(10) == 0


def test_sigterm_cuts_what_does_not_end_and_says_so() -> None:
    settings = {"drain.lame_duck_seconds": 0, "drain.seconds": 1}
    with FakeEngine("m") as engine, RouterProcess({"e1": (engine.url, ["m"])}, settings=settings) as router:
        gated(engine, Gate())
        readers = [Reader(client) for client in open_streams(router.port, 5)]
        engine.wait_request(5)
        router.process.send_signal(signal.SIGTERM)
        assert router.process.wait(10) == 0
        for reader in readers:
            answer = reader.end()
            assert b"[DONE]" not in answer.body
            assert not answer.complete or '"error"' in answer.events()[-1]


def test_sigint_stops_as_well() -> None:
    with FakeEngine("m") as engine, RouterProcess({"e1": (engine.url, ["m"])}) as router:
        router.exit_codes = (0, 130)
        router.process.send_signal(signal.SIGINT)
        router.process.wait(10)


def test_killed_router_breaks_its_streams_visibly_and_another_one_serves() -> None:
    gate = Gate()
    with FakeEngine("m") as engine:
        endpoints = {"e1": (engine.url, ["m"])}
        with RouterProcess(endpoints) as first, RouterProcess(endpoints) as second:
            gated(engine, gate)
            readers = [Reader(client) for client in open_streams(first.port, 50)]
            engine.wait_request(50)
            first.kill()
            for reader in readers:
                answer = reader.end()
                assert not answer.complete
                assert b"[DONE]" not in answer.body
            for request in engine.requests[:50]:
                engine.wait_closed(request)
            gate.open()
            engine.reset_state()
            assert ask_chat(second.port).status == 200


def test_a_killed_worker_is_replaced_and_requests_go_on() -> None:
    with FakeEngine("m") as engine, RouterProcess({"e1": (engine.url, ["m"])}, workers=2) as router:
        workers = router.workers()
        assert len(workers) == 2
        for _ in range(20):
            assert ask_chat(router.port).status == 200
        victim = workers[0]
        victim.kill()
        wait_until(lambda: len(router.workers()) == 2 and not _alive(victim), within=15, what="two workers again")
        wait_until(lambda: health(router.port) == 200, within=15, what="healthy")
        failures = 0
        for _ in range(40):
            try:
                failures += ask_chat(router.port).status != 200
            except (OSError, ClosedEarlyError):
                failures += 1
        assert failures == 0
        assert router.process.poll() is None


def _alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_metrics_are_the_sum_over_all_workers_whoever_is_asked() -> None:
    with FakeEngine("m") as engine, RouterProcess({"e1": (engine.url, ["m"])}, workers=2) as router:
        for _ in range(40):
            assert ask_chat(router.port).status == 200

        def total() -> float:
            return metric(router.port, "llmgw_router_requests_total", model="m", code="200")

        wait_until(lambda: {total() for _ in range(6)} == {40.0}, within=15, what="every scrape shows all 40 requests")
        assert metric(router.port, "llmgw_router_tokens_total", kind="completion") == 200


def test_killed_main_process_leaves_no_workers_behind() -> None:
    with FakeEngine("m") as engine, RouterProcess({"e1": (engine.url, ["m"])}, workers=2) as router:
        assert len(router.workers()) == 2
        router.kill()
        assert router.wait_group_gone(10) == []


# Keys, changed while it runs


@pytest.mark.parametrize("workers", [1, 2])
def test_sighup_reads_the_keys_again_and_a_bad_file_changes_nothing(workers: int) -> None:
    keys = {"old": "sk-old", "stays": "sk-stays"}
    with FakeEngine("m") as engine, RouterProcess({"e1": (engine.url, ["m"])}, keys=keys, workers=workers) as router:

        def statuses(key: str) -> set[int]:
            return {ask_chat(router.port, key=key).status for _ in range(8)}

        assert statuses("sk-old") == statuses("sk-stays") == {200}
        assert statuses("sk-new") == {401}
        with RawClient(router.port) as kept:
            old = build("POST", "/v1/chat/completions", chat(), key="sk-old")
            for _ in range(3):
                kept.send(old)
                assert kept.answer().status == 200
            router.key_file.write_text("stays:sk-stays\nnew:sk-new\n")
            router.process.send_signal(signal.SIGHUP)
            wait_until(lambda: statuses("sk-new") == {200}, within=15, what="the new key in force")
            wait_until(lambda: statuses("sk-old") == {401}, within=15, what="the old key gone")
            kept.send(old)
            assert kept.answer().status == 401, "an open connection still used the key that was taken away"
        router.key_file.write_text("this is no key file\n")
        router.process.send_signal(signal.SIGHUP)
        wait_until(lambda: str(router.key_file) in router.log(), within=15, what="the fault in the log")
        assert statuses("sk-new") == statuses("sk-stays") == {200}
        assert "this is no key file" not in router.log()


# Bad starts


@pytest.fixture
def log_untouched() -> Iterator[None]:
    """Puts the log of the test's own process back as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


ENDPOINT = ("--endpoint", "e1=http://127.0.0.1:9=m")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--listen", "127.0.0.1:0"), "endpoint"),
        (("--listen", "nowhere", *ENDPOINT), "nowhere"),
        (("--listen", "127.0.0.1:99999", *ENDPOINT), "99999"),
        (("--listen", "127.0.0.1:0", "--endpoint", "nonsense"), "nonsense"),
        (("--listen", "127.0.0.1:0", "--endpoint", "e1=ftp://x=m"), "ftp"),
        (("--listen", "127.0.0.1:0", *ENDPOINT, *ENDPOINT), "e1"),
        (("--listen", "127.0.0.1:0", *ENDPOINT, "--workers", "-3"), "-3"),
        (("--listen", "127.0.0.1:0", *ENDPOINT, "--set", "policy=psychic"), "psychic"),
        (("--listen", "127.0.0.1:0", *ENDPOINT, "--set", "limits.unknown=1"), "unknown"),
        (("--listen", "127.0.0.1:0", *ENDPOINT, "--api-keys", "/nowhere/keys"), "/nowhere/keys"),
        (("--listen", "127.0.0.1:0", *ENDPOINT, "--config", "/nowhere/c.yaml"), "/nowhere/c.yaml"),
        (("--listen", "0.0.0.0:0", *ENDPOINT), "insecure"),
    ],
)
@pytest.mark.usefixtures("log_untouched")
def test_bad_arguments_end_with_2_and_name_the_cause(
    arguments: tuple[str, ...], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # In this process, since each start of another takes a second on a loaded machine; the next test starts real ones.
    assert main([*arguments, "--check-config"]) == 2
    output = capsys.readouterr().err
    assert word in output
    assert "Traceback" not in output


def started(*arguments: str) -> tuple[int, str]:
    argv = [sys.executable, "-m", "llmgw_router", *arguments]
    run = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    return run.returncode, run.stdout + run.stderr


def test_taken_port_and_bad_key_file_are_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, output = started("--listen", f"127.0.0.1:{port}", *ENDPOINT)
    assert code in (1, 2)
    assert str(port) in output
    assert "Traceback" not in output
    keys = tmp_path / "keys"
    keys.write_text("no colon here\n")
    code, output = started("--listen", "127.0.0.1:0", *ENDPOINT, "--api-keys", str(keys))
    assert code == 2
    assert str(keys) in output
    assert "no colon here" not in output, "a key file's content must not be shown"
    assert "Traceback" not in output


# Engines


PROBES = {
    "health.probe_seconds": 0.2,
    "health.probe_timeout": 0.5,
    "health.silent_seconds": 0.5,
    "health.ejection_seconds": 0.5,
    "timeouts.first_byte": 3,
    "policy": "round_robin",
}


class EngineProcess:
    """The fake engine as a process that can be killed, stopped and started again on its port."""

    def __init__(self, model: str = "m") -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self._model = model
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        argv = [sys.executable, "-m", "llmgw_testing.fake_engine", "--port", str(self.port), "--model", self._model]
        pace = ["--tokens", "50", "--token-seconds", "0.05"]
        self.process = subprocess.Popen([*argv, *pace], cwd=Path(__file__).parent.parent, stdout=subprocess.DEVNULL)
        wait_until(lambda: health(self.port) == 200, within=15, what="the engine answers")

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)
        if number is signal.SIGKILL:
            self.process.wait(10)

    def __enter__(self) -> EngineProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)


def served_by(engine: FakeEngine, port: int, count: int) -> int:
    before = len(engine.requests)
    for _ in range(count):
        assert ask_chat(port, max_tokens=1).status == 200
    return len(engine.requests) - before


def test_engine_killed_mid_stream_is_told_ejected_and_used_again_after_its_return() -> None:
    with EngineProcess() as mortal, FakeEngine("m") as other:
        endpoints = {"mortal": (mortal.url, ["m"]), "other": (other.url, ["m"])}
        with RouterProcess(endpoints, settings=PROBES) as router:
            readers = [Reader(client) for client in open_streams(router.port, 4)]
            begun = "llmgw_router_time_to_first_token_seconds_count"
            wait_until(lambda: metric(router.port, begun, model="m") == 4, within=15, what="all streams begun")
            assert metric(router.port, "llmgw_router_replica_load", replica="mortal") == 2
            mortal.signal(signal.SIGKILL)
            results = [reader.end() for reader in readers]
            broken = [answer for answer in results if b"[DONE]" not in answer.body]
            assert len(broken) == 2
            assert all('"error"' in answer.events()[-1] for answer in broken)
            assert served_by(other, router.port, 10) == 10
            mortal.start()
            wait_until(lambda: served_by(other, router.port, 4) < 4, within=30, what="the engine is used again")


def test_hung_engine_is_ejected_and_its_waiting_request_gets_a_504_at_the_limit() -> None:
    with EngineProcess("hung") as hung, RouterProcess({"hung": (hung.url, ["hung"])}, settings=PROBES) as router:
        assert ask_chat(router.port, "hung", max_tokens=1).status == 200
        hung.signal(signal.SIGSTOP)
        began = time.monotonic()
        answer = ask_chat(router.port, "hung", max_tokens=1)
        assert answer.status in (503, 504)
        assert time.monotonic() - began < 10
        wait_until(lambda: metric(router.port, "llmgw_router_ejections_total", replica="hung") >= 1, within=8, what="ejected")
        hung.signal(signal.SIGCONT)
        wait_until(lambda: ask_chat(router.port, "hung", max_tokens=1).status == 200, within=30, what="used again")


def test_hung_engine_among_others_costs_no_client_an_error() -> None:
    with EngineProcess() as hung, FakeEngine("m") as other:
        endpoints = {"hung": (hung.url, ["m"]), "other": (other.url, ["m"])}
        with RouterProcess(endpoints, settings=PROBES) as router:
            hung.signal(signal.SIGSTOP)
            assert [ask_chat(router.port, max_tokens=1).status for _ in range(4)] == [200] * 4
            wait_until(lambda: served_by(other, router.port, 4) == 4, within=8, what="only the other one is asked")
            hung.signal(signal.SIGCONT)
