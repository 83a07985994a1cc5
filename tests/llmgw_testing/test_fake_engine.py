"""The fake engine itself: what it says it does, it does; a helper that lies makes every test that uses it worthless."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from llmgw_testing.fake_engine import FakeEngine
from llmgw_testing.fake_openai import STREAM_HEAD, chat_events, chunk, reset_after, silent, stream
from llmgw_testing.raw_http import ClosedEarlyError, RawClient, ask, ask_chat, build, chat

TESTS = Path(__file__).parent.parent


def test_normal_engine_answers_and_records_the_request_byte_for_byte() -> None:
    with FakeEngine("m", api_key="k1", tokens=3) as engine:
        assert ask(engine.port, "GET", "/health").status == 200
        assert ask_chat(engine.port).status == 401
        sent = build("POST", "/v1/chat/completions", chat(), key="k1")
        with RawClient(engine.port) as client:
            client.send(sent)
            answer = client.answer().json()
        assert answer["choices"][0]["message"]["content"] == "w0 w1 w2 "
        assert engine.wait_request(2).raw == sent
        assert engine.requests[1].finished.wait(5)


def test_stream_is_sent_in_the_scripted_writes() -> None:
    events = chat_events("m", ["a", "b"])
    with FakeEngine("m") as engine:
        engine.script(stream(events, pause=0.001))
        assert ask_chat(engine.port, stream=True).chunks == events


def test_peer_leaving_is_seen_and_reset_reaches_the_peer() -> None:
    with FakeEngine("m") as engine:
        engine.script(silent(), reset_after(STREAM_HEAD, chunk(b"data: x\n\n")))
        with RawClient(engine.port) as client:
            client.send(build("POST", "/v1/chat/completions", chat()))
            request = engine.wait_request()
            left = time.monotonic()
        assert engine.wait_closed(request) - left < 5
        with pytest.raises(ClosedEarlyError):
            ask_chat(engine.port)
        assert not engine.requests[1].closed.is_set()


def _program(*arguments: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "llmgw_testing.fake_engine", "--port", "0", "--model", "m", *arguments]
    return subprocess.Popen(argv, cwd=TESTS, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _port(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    found = re.search(r":(\d+) pid", process.stdout.readline())
    assert found
    return int(found.group(1))


def _end(process: subprocess.Popen[str], number: int = signal.SIGTERM) -> int:
    process.send_signal(number)
    process.communicate(timeout=20)
    return process.returncode


def test_program_modes() -> None:
    normal, unready, wedged, stubborn = (
        _program("--script", name) for name in ("normal", "never-ready", "wedge", "ignore-sigterm")
    )
    failing = _program("--script", "exit-1")
    assert "out of memory" in failing.communicate(timeout=20)[1]
    assert failing.returncode == 1
    assert ask_chat(_port(normal)).status == 200
    assert _end(normal) == 0
    assert ask(_port(unready), "GET", "/health").status == 503
    assert _end(unready) == 0
    port = _port(wedged)
    assert ask(port, "GET", "/health").status == 200
    with RawClient(port, limit=0.3) as client:
        client.send(build("POST", "/v1/chat/completions", chat()))
        with pytest.raises(TimeoutError):
            client.receive()
    assert _end(wedged) == 0
    _port(stubborn)
    stubborn.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        stubborn.wait(0.3)
    assert _end(stubborn, signal.SIGKILL) == -signal.SIGKILL


def test_program_leaves_a_child_behind() -> None:
    process = _program("--script", "double-fork")
    assert process.stdout is not None
    child = psutil.Process(int(process.stdout.readline().split()[-1]))
    _port(process)
    process.kill()
    assert process.wait(20) == -signal.SIGKILL
    assert child.is_running()
    assert child.ppid() != process.pid
    child.kill()
    process.communicate(timeout=20)
