"""``llmgwctl up`` for real: etcd, coordinator, router, agent, engines, as a user runs it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
import pytest

from llmgw_testing.wait import wait_until

MARK = "LLMGW_TEST_UP"
PROGRAM = [sys.executable, "-m", "llmgw_ctl"]
TESTS = str(Path(__file__).parents[1])
SECONDS = 100.0
ECHO = [
    "--",
    sys.executable,
    "-m",
    "llmgw_testing.fake_engine",
    "--port",
    "{port}",
    "--model",
    "{model}",
    "--api-key",
    "{api_key}",
]


class Up:
    """One ``up`` in the background, with a home of its own; leaving the block checks that no process is left."""

    def __init__(self, home: Path, *args: str) -> None:
        self.home = home
        self.state = home / "state"
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith(("LLMGW_", "XDG_"))}
        self.environment |= {"HOME": str(home), "NO_COLOR": "1", MARK: str(home)}
        self._argv = [*PROGRAM, "up", "--state-dir", str(self.state), "--listen", "127.0.0.1:0", *args]

    def __enter__(self) -> Self:
        self._out = (self.home / "out").open("wb")
        self._err = (self.home / "err").open("wb")
        self.process = subprocess.Popen(
            self._argv, stdin=subprocess.DEVNULL, stdout=self._out, stderr=self._err, env=self.environment
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGTERM)
                self.process.wait(60)
        finally:
            left = self.processes()
            for process in left:
                process.kill()
            self.process.kill()
            self.process.wait(30)
            self._out.close()
            self._err.close()
            if kind is not None:
                print(
                    self.out(), self.err(), *(f"--- {log}\n{log.read_text()[-3000:]}" for log in self.state.glob("logs/*.log"))
                )
        if kind is None:
            assert not left, f"left running: {left}"
            shutil.rmtree(self.state / "etcd", ignore_errors=True)  # 62 MB that pytest would keep

    def out(self) -> str:
        return (self.home / "out").read_text()

    def err(self) -> str:
        return (self.home / "err").read_text()

    def serves(self) -> Self:
        def up() -> bool:
            assert self.process.poll() is None, f"ended with {self.process.returncode}: {self.err()}"
            return "Ctrl-C stops everything" in self.out()

        wait_until(up, within=SECONDS, what="up to serve", every=0.1)
        return self

    def processes(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == str(self.home) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return [process for process in found if process.pid != self.process.pid]

    def ctl(self, *args: str, expect: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run([*PROGRAM, *args], capture_output=True, text=True, env=self.environment, timeout=100, check=False)
        assert done.returncode == expect, f"{args} ended with {done.returncode}: {done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr
        return done

    def ask_ctl(self, *args: str) -> Any:
        return json.loads(self.ctl(*args, "-o", "json").stdout)

    def child(self, name: str) -> int:
        return int(json.loads((self.state / "run" / f"{name}.json").read_text())["pid"])

    def answers(self, model: str) -> None:
        """A router learns of a replica, or of all after its start, a moment after others do."""
        wait_until(lambda: self.chat(model).startswith("w0 w1"), within=60, what=f"an answer of {model}", every=0.1)

    def chat(self, model: str) -> str:
        router = json.loads((self.state / "admin.json").read_text())["router_url"]
        body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hello"}]}).encode()
        asked = urllib.request.Request(f"{router}/v1/chat/completions", body, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(asked, timeout=60) as answer:
                return str(json.load(answer)["choices"][0]["message"]["content"])
        except urllib.error.HTTPError as error:
            with error:
                return f"{error.code} {error.read().decode()}"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path


def test_the_main_job_one_question_to_the_real_model(home: Path) -> None:
    with Up(home, "--sample", "--ask", "In one sentence: why is the sky blue?") as up:
        assert up.process.wait(SECONDS) == 0, up.err()
    out = up.out()
    assert re.search(r"OpenAI API +http://127\.0\.0\.1:\d+/v1", out)
    assert "curl http://127.0.0.1:" in out
    assert "from openai import OpenAI" in out
    answer = out.partition("why is the sky blue?\n")[2]
    assert len(answer.split()) > 10
    figures = re.search(r"time to first token (\d+) ms, ([\d.]+) tokens per second \((\d+) tokens", answer)
    assert figures
    assert float(figures[2]) > 0
    assert not (up.state / "admin.json").exists()
    assert "Traceback" not in up.err()


@pytest.mark.timeout(300)
def test_a_day_in_the_life(home: Path) -> None:
    with Up(home) as up:
        up.serves()
        assert up.ask_ctl("status")["cluster"]["name"] == "up"  # found without being told where

        second = up.ctl("up", "--state-dir", str(up.state), expect=1)
        assert f"already (pid {up.process.pid})" in second.stderr

        port = json.loads((up.state / "admin.json").read_text())["router_url"].rpartition(":")[2]
        taken = up.ctl("up", "--state-dir", str(home / "other"), "--listen", port, expect=1)
        assert f"port {port} is in use by" in taken.stderr
        assert "--listen" in taken.stderr

        up.ctl("model", "serve", "echo", "--env", f"PYTHONPATH={TESTS}", "--memory", "64MiB", *ECHO)
        up.answers("echo")
        engine = up.ask_ctl("replica", "list")[0]

        os.kill(up.child("agent"), signal.SIGKILL)
        os.kill(up.child("router"), signal.SIGKILL)
        wait_until(lambda: "agent is back" in up.err(), within=60, what="the agent to be back", every=0.1)
        wait_until(lambda: "router is back" in up.err(), within=60, what="the router to be back", every=0.1)
        up.answers("echo")
        adopted = up.ask_ctl("replica", "list")[0]
        assert (adopted["id"], adopted["pid"]) == (engine["id"], engine["pid"])

        up.process.kill()
        up.process.wait(30)
        assert up.processes()

        with Up(home) as again:  # what the killed one left is cleared away, and the model comes back by itself
            again.serves()
            assert "left by an `up` that was killed" in again.err()
            assert re.search(r"Models +echo", again.out())
            again.answers("echo")
            again.process.send_signal(signal.SIGINT)
            assert again.process.wait(60) == 0
            assert re.findall(r"✓ (\w+) +stopped", again.err()) == ["agent", "router", "coordinator", "etcd"]


def test_stopped_before_it_was_up_leaves_nothing_and_says_130(home: Path) -> None:
    with Up(home) as up:
        wait_until(lambda: (up.state / "run" / "etcd.json").exists(), within=60, what="etcd to be started")
        up.process.send_signal(signal.SIGINT)
        assert up.process.wait(60) == 130
    assert "stopped by SIGINT" in up.err()


def test_a_second_ctrl_c_kills_at_once(home: Path) -> None:
    with Up(home) as up:
        wait_until(lambda: (up.state / "run" / "etcd.json").exists(), within=60, what="etcd to be started")
        os.kill(up.child("etcd"), signal.SIGSTOP)  # it will not stop when asked to

        def ended() -> bool:
            up.process.send_signal(signal.SIGINT)
            return up.process.poll() is not None

        wait_until(ended, within=60, what="up to end", every=0.2)
        # One signal more, while the interpreter ends, is what a shell calls 130 as well.
        assert up.process.returncode in (130, -signal.SIGINT)
    assert "killing everything at once" in up.err()
    assert "did not stop within" not in up.err()


def test_wrong_usage_starts_nothing(home: Path) -> None:
    with Up(home, "--serve", "m=/no/such.gguf") as up:
        assert up.process.wait(60) == 2
    assert "there is no file /no/such.gguf" in up.err()
    assert not up.state.exists()


def test_a_port_in_use_leaves_nothing_running(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with Up(home, "--listen", f"127.0.0.1:{port}") as up:
            assert up.process.wait(60) == 1
    assert f"port {port} is in use by" in up.err()
    assert f"(pid {os.getpid()})" in up.err()
