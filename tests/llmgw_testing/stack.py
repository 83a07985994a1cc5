"""The whole of llmgw as real processes on this machine: etcd, coordinators, agents, routers, and ``llmgwctl`` against them.

    with Stack(tmp_path) as stack:
        stack.coordinator("c1")
        stack.agent("n1")
        router = stack.router("r1")
        stack.ctl("model", "apply", "-f", "-", stdin=...)

Leaving the block stops everything and checks that no process of it is left.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import openai
import psutil
import yaml

from llmgw_testing.etcd_server import EtcdServer, Series
from llmgw_testing.wait import wait_until

MARK = "LLMGW_TEST_STACK"
START = 60.0
"""Seconds that a program may take to answer on a loaded machine."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
    return port


@dataclass
class Daemon:
    """One program of llmgw; it can be killed, frozen and started again with the same configuration."""

    name: str
    argv: list[str]
    log_path: Path
    environment: dict[str, str]
    url: str = ""
    process: subprocess.Popen[bytes] = field(init=False)

    def start(self) -> Self:
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment,
                start_new_session=True,
            )
        return self

    @property
    def pid(self) -> int:
        return self.process.pid

    def log(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait(30)

    def stop(self, within: float = 40) -> int:
        """SIGTERM; returns the exit status."""
        self.process.terminate()
        return self.process.wait(within)

    @property
    def running(self) -> bool:
        return self.process.poll() is None


class Stack:
    """``lease_ttl`` and ``leader_ttl`` in seconds; etcd keeps no lease shorter than about 2 s. ``unix``: etcd listens on a Unix
    socket, which programs in other network namespaces reach too."""

    def __init__(
        self, root: Path, *, etcd_version: Series = "3.5", lease_ttl: float = 5, leader_ttl: float = 5, unix: bool = False
    ) -> None:
        self.root = root
        self.etcd = EtcdServer(etcd_version, unix=unix)
        self.lease_ttl = lease_ttl
        self.leader_ttl = leader_ttl
        self.daemons: dict[str, Daemon] = {}
        self._clients: list[openai.OpenAI] = []
        self._mark = f"{os.getpid()}-{root.name}-{free_port()}"
        self.environment = {**os.environ, MARK: self._mark, "NO_COLOR": "1", "COLUMNS": "200"}

    # Life

    def __enter__(self) -> Self:
        self.root.mkdir(parents=True, exist_ok=True)
        self.etcd.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for client in self._clients:
            client.close()
        try:
            for name in reversed(self.daemons):
                daemon = self.daemons[name]
                if daemon.running:
                    daemon.send(signal.SIGCONT)
                    daemon.stop()
        finally:
            left = self.processes()
            names = [" ".join(process.cmdline()) for process in left]
            for process in left:
                process.kill()
            self.etcd.close()
            if kind is not None:
                for daemon in self.daemons.values():
                    print(f"--- {daemon.name}\n{daemon.log()[-4000:]}", file=sys.stderr)
        if kind is None:
            assert not left, f"left running after everything was stopped: {names}"
            for daemon in self.daemons.values():
                assert "Traceback (most recent call last)" not in daemon.log(), f"{daemon.name}:\n{daemon.log()[-6000:]}"

    def processes(self) -> list[psutil.Process]:
        """Every live process that descends from this stack, engines and their orphans too, etcd not.

        Who overwrote its environment, as vLLM's workers do, is known by its output.
        """
        found = []
        for process in psutil.process_iter():
            try:
                ours = process.environ().get(MARK) == self._mark or self._writes_here(process.pid)
                ours = ours and process.status() != psutil.STATUS_ZOMBIE
            except psutil.Error:
                continue
            if ours:
                found.append(process)
        return found

    def _writes_here(self, pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/fd/1").readlink().is_relative_to(self.root)
        except OSError:
            return False

    def engines(self) -> list[int]:
        """Pids of engine processes, from the marker that agents put into their environment."""
        found = []
        for process in self.processes():
            try:
                environment = process.environ()
                if "LLMGW_SHARD" in environment and environment.get("LLMGW_PART", "engine") == "engine":
                    found.append(process.pid)
            except psutil.Error:
                continue
        return sorted(found)

    # Programs

    def coordinator(self, name: str = "c1", **settings: Any) -> Daemon:
        port = free_port()
        config = {
            "id": name,
            "listen": f"127.0.0.1:{port}",
            "token_file": str(self.token_file),
            "leader_ttl": self.leader_ttl,
            "etcd": self._etcd_section(),
            "insecure": True,
        }
        daemon = self._start("llmgw_coordinator", name, config | settings, f"http://127.0.0.1:{port}")
        self._await(daemon, "/readyz")
        return daemon

    def agent(self, name: str = "n1", *, inside: Sequence[str] = (), **settings: Any) -> Daemon:
        """``inside``: what goes before the command line, to run it in a network of its own for example."""
        config = {
            "node": {"name": name, "address": "127.0.0.1"},
            "listen": "127.0.0.1:0",
            "state_dir": str(self.root / f"agent-{name}"),
            "lease_ttl": self.lease_ttl,
            "etcd": self._etcd_section(),
            "engines": {"on_stop": "stop", "stop_seconds": 5},
            "insecure": True,
        }
        return self._start("llmgw_agent", name, _merge(config, settings), "", inside)

    def router(self, name: str = "r1", **settings: Any) -> Daemon:
        port = free_port()
        config = {
            "id": name,
            "listen": f"127.0.0.1:{port}",
            "state_dir": str(self.root / f"router-{name}"),
            "etcd": self._etcd_section(),
            "insecure": True,
            "drain": {"lame_duck_seconds": 0, "seconds": 5},
        }
        daemon = self._start("llmgw_router", name, _merge(config, settings), f"http://127.0.0.1:{port}")
        wait_until(lambda: status(f"{daemon.url}/v1/models") == 200, within=START, what=f"router {name} to answer")
        return daemon

    def _etcd_section(self) -> dict[str, Any]:
        return {"endpoints": [self.etcd.endpoint]}

    def _start(self, module: str, name: str, config: Mapping[str, Any], url: str, inside: Sequence[str] = ()) -> Daemon:
        path = self.root / f"{name}.yaml"
        path.write_text(yaml.safe_dump(dict(config)))
        argv = [*inside, sys.executable, "-m", module, "--config", str(path)]
        daemon = Daemon(name, argv, self.root / f"{name}.log", dict(self.environment), url)
        self.daemons[name] = daemon
        return daemon.start()

    def _await(self, daemon: Daemon, path: str) -> None:
        def answers() -> bool:
            assert daemon.running, f"{daemon.name} ended with {daemon.process.returncode}:\n{daemon.log()}"
            return status(daemon.url + path) == 200

        wait_until(answers, within=START, what=f"{daemon.name} to answer {path}")

    # What a test asks

    def client(self, router: Daemon) -> openai.OpenAI:
        """The OpenAI client as users have it, but for its own retries; closed with the stack."""
        made = openai.OpenAI(base_url=f"{router.url}/v1", api_key="none", max_retries=0, timeout=120)
        self._clients.append(made)
        return made

    @property
    def token_file(self) -> Path:
        return self.root / "admin.token"

    def admin_url(self) -> str:
        """Of the first coordinator that runs."""
        return next(d.url for d in self.daemons.values() if "llmgw_coordinator" in d.argv and d.running)

    def ctl(
        self, *args: str, stdin: str = "", expect: int | None = 0, timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Runs ``llmgwctl`` as a user does; ``expect`` is its exit status, None for any."""
        argv = [sys.executable, "-m", "llmgw_ctl", *args]
        environment = self.environment | {
            "LLMGW_SERVER": self.admin_url(),
            "LLMGW_TOKEN_FILE": str(self.token_file),
            "XDG_CONFIG_HOME": str(self.root / "config"),
            "XDG_STATE_HOME": str(self.root / "state"),
        }
        done = subprocess.run(argv, input=stdin, capture_output=True, text=True, env=environment, timeout=timeout, check=False)
        if expect is not None:
            assert done.returncode == expect, f"{' '.join(args)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done

    def ask_ctl(self, *args: str) -> Any:
        """The JSON that ``llmgwctl ARGS -o json`` prints."""
        return json.loads(self.ctl(*args, "-o", "json").stdout)

    def admin(self, path: str) -> Any:
        """What the admin API answers to a GET; quicker than ``ask_ctl`` where a test waits for something."""
        headers = {"authorization": f"Bearer {self.token_file.read_text().strip()}"}
        with urllib.request.urlopen(urllib.request.Request(self.admin_url() + path, headers=headers), timeout=30) as answer:
            return json.load(answer)

    def leader(self) -> str | None:
        found: str | None = self.admin("/admin/v1/status")["leader"]
        return found

    def apply(self, spec: Mapping[str, Any], *flags: str, expect: int | None = 0) -> subprocess.CompletedProcess[str]:
        return self.ctl("model", "apply", "-f", "-", *flags, stdin=json.dumps(spec), expect=expect)

    def replicas(self, model: str | None = None) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.admin("/admin/v1/replicas")["replicas"]
        return [each for each in found if model is None or each["model"] == model]

    def ready(self, model: str, count: int, within: float = 60) -> list[dict[str, Any]]:
        """Waits until exactly ``count`` replicas exist and all are Ready."""

        def check() -> list[dict[str, Any]] | None:
            found = self.replicas(model)
            return found if len(found) == count and all(each["state"] == "Ready" for each in found) else None

        found = wait_until(check, within=within, what=f"{count} ready replicas of {model}", every=0.2)
        assert found is not None
        return found


def fake_model(name: str, *extra: str, **fields: Any) -> dict[str, Any]:
    """A model that the fake engine serves through the ``command`` engine; ``extra`` are the fake engine's own flags."""
    flags = ["--port", "{port}", "--model", "{model}", "--api-key", "{api_key}", *extra]
    profile = {
        "engine": "command",
        "command": [sys.executable, "-m", "llmgw_testing.fake_engine", *flags],
        "env": {"PYTHONPATH": str(Path(__file__).resolve().parents[1])},
        "memory": "64MiB",
    }
    return {"name": name, "profiles": [profile], "drain_seconds": 5} | fields


def status(url: str, body: Mapping[str, Any] | None = None, timeout: float = 30) -> int:
    """The HTTP status, or 0 when nothing answers."""
    return request(url, body, timeout)[0]


def request(url: str, body: Mapping[str, Any] | None = None, timeout: float = 30) -> tuple[int, bytes]:
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(url, data, {"content-type": "application/json"} if data else {})
    try:
        with urllib.request.urlopen(asked, timeout=timeout) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()
    except (OSError, ValueError):
        return 0, b""


def chat(router_url: str, model: str, **fields: Any) -> tuple[int, bytes]:
    body = {"model": model, "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8}
    return request(f"{router_url}/v1/chat/completions", body | fields)


def holds(check: Callable[[], bool], *, every: Sequence[float]) -> None:
    """Asserts the condition at several moments (seconds after now)."""
    import time

    start = time.monotonic()
    for moment in every:
        time.sleep(max(0.0, start + moment - time.monotonic()))
        assert check(), f"no longer true after {moment} s"


def _merge(base: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        inner = merged.get(key)
        merged[key] = _merge(inner, value) if isinstance(inner, dict) and isinstance(value, Mapping) else value
    return merged
