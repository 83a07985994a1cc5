"""The real router as its own process, for black-box tests.

    with RouterProcess({"e1": (engine.url, ["m"])}) as router:
        ask_chat(router.port)

Leaving the block stops it with SIGTERM and checks that it ended by itself and that no process of its group is left.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from llmgw_testing.raw_http import ClosedEarlyError, ask

START_SECONDS = 30.0
STOP_SECONDS = 20.0
START_LINE = re.compile(r"listening on http://127\.0\.0\.1:(\d+)")


class RouterProcess:
    """`endpoints`: id → (URL, model names). `keys`: name → API key. `settings`: `key.path` → value, given as `--set`.
    `open_files`: RLIMIT_NOFILE of the process.
    """

    def __init__(
        self,
        endpoints: Mapping[str, tuple[str, Sequence[str]]],
        *,
        keys: Mapping[str, str] | None = None,
        workers: int = 1,
        settings: Mapping[str, object] | None = None,
        open_files: int | None = None,
        listen: str = "127.0.0.1:0",
        arguments: Sequence[str] = (),
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="llmgw-router-")
        folder = Path(self._folder.name)
        self._stderr = folder / "stderr"
        argv = [sys.executable, "-m", "llmgw_router", "--listen", listen, "--workers", str(workers)]
        for name, (url, models) in endpoints.items():
            argv += ["--endpoint", f"{name}={url}={','.join(models)}"]
        self.key_file = folder / "keys"
        if keys is not None:
            self.key_file.touch(mode=0o600)
            self.key_file.write_text("".join(f"{name}:{key}\n" for name, key in keys.items()))
            argv += ["--api-keys", str(self.key_file)]
        for path, value in (settings or {}).items():
            argv += ["--set", f"{path}={value}"]
        self.argv = [*argv, *arguments]
        self._open_files = open_files
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = False
        self.exit_codes: tuple[int, ...] = (0,)
        self.port = 0

    # Life

    def start(self, *, ready: bool = True) -> Self:
        """Starts it and waits for the start line and, if `ready`, for `/health` to be 200."""
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        # A limit set between fork and exec would need Python code there, which gRPC's threads in this process do not survive.
        limit = [] if self._open_files is None else ["prlimit", f"--nofile={self._open_files}:{self._open_files}"]
        with self._stderr.open("wb") as stderr:
            self._process = subprocess.Popen(
                [*limit, *self.argv],
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
                env=environment,
                start_new_session=True,
            )
        end = time.monotonic() + START_SECONDS
        while self.port == 0:
            found = START_LINE.search(self.log())
            if found:
                self.port = int(found.group(1))
            else:
                self._still_starting(end, "no start line")
        while ready and self._health() != 200:
            self._still_starting(end, "/health is not 200")
        return self

    def _still_starting(self, end: float, what: str) -> None:
        if self.process.poll() is not None or time.monotonic() > end:
            code = self.process.poll()
            self._kill_group()
            raise AssertionError(f"{what} (exit code {code}) from {' '.join(self.argv)}:\n{self.tail()}")
        time.sleep(0.02)

    def _health(self) -> int:
        try:
            return ask(self.port, "GET", "/health").status
        except (OSError, ClosedEarlyError):
            return 0

    def stop(self) -> None:
        """SIGTERM, waits for its end (with one of `exit_codes`), and checks that nothing of it is left."""
        code: int | None = None
        try:
            if self.process.poll() is None and not self._killed:
                self.process.send_signal(signal.SIGTERM)
            code = self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the router did not end within {STOP_SECONDS} s of SIGTERM:\n{self.tail()}") from None
        finally:
            left = self.wait_group_gone()
            self._kill_group()
            log, tail = self.log(), self.tail()
            self._folder.cleanup()
        if not self._killed:
            assert code in self.exit_codes, f"the router ended with {code}:\n{tail}"
            trace = log.find("Traceback (most recent call last)")
            assert trace < 0, log[max(0, trace - 300) : trace + 3000]
        assert not left, f"left running after the router's end: {left}"

    def kill(self) -> None:
        """SIGKILL to the main process; leaving the block then checks only that nothing is left."""
        self._killed = True
        self.process.kill()
        self.process.wait(STOP_SECONDS)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            print(f"--- router log\n{self.tail()}", file=sys.stderr)
        self.stop()

    # What a test sees

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "not started"
        return self._process

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def log(self) -> str:
        return self._stderr.read_text(errors="replace") if self._stderr.exists() else ""

    def tail(self) -> str:
        """The end of the log, without the answers to probes."""
        lines = [line for line in self.log().splitlines() if '"/health"' not in line]
        return "\n".join(lines[-30:])[-5000:]

    def processes(self) -> list[psutil.Process]:
        """The main process and all below it."""
        main = psutil.Process(self.process.pid)
        return [main, *main.children(recursive=True)]

    def workers(self) -> list[psutil.Process]:
        """The processes below the main one that serve requests (they own a socket)."""
        found = []
        for process in self.processes()[1:]:
            try:
                if process.net_connections(kind="tcp"):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def resident_bytes(self) -> int:
        return sum(process.memory_info().rss for process in self.processes())

    def group(self) -> list[str]:
        """Live processes in the session that the router was started in."""
        found = []
        for process in psutil.process_iter(["pid", "status", "cmdline"]):
            try:
                ours = os.getsid(process.pid) == self.process.pid
            except OSError:
                continue
            if ours and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid} {' '.join(process.info['cmdline'] or [])}")
        return found

    def wait_group_gone(self, limit: float = 5.0) -> list[str]:
        end = time.monotonic() + limit
        while (left := self.group()) and time.monotonic() < end:
            time.sleep(0.05)
        return left

    def _kill_group(self) -> None:
        for line in self.group():
            try:
                os.kill(int(line.split(" ", 1)[0]), signal.SIGKILL)
            except ProcessLookupError:
                continue
        if self.process.poll() is None:
            self.process.wait(STOP_SECONDS)
