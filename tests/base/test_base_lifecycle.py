from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from llmgw_base.notify import Notifier

PROGRAM = """
import asyncio, sys
from llmgw_base import lifecycle
from llmgw_base.config import ConfigError
from llmgw_base.etcd.errors import StoreUnavailableError

async def body(stop, notifier):
    mode = sys.argv[1]
    if mode == "config":
        async with asyncio.TaskGroup():
            raise ConfigError("f.yaml: a.b: wrong")
    if mode == "store":
        raise StoreUnavailableError("etcd at http://127.0.0.1:1 does not answer")
    notifier.ready()
    print("serving", flush=True)
    reason = await stop.wait()
    if mode == "stubborn":
        print("stopping", flush=True)
        await asyncio.Event().wait()
    print("stopped by", reason, flush=True)

sys.exit(lifecycle.main("prog", body))
"""


def start(mode: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, mode],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize(
    ("mode", "status", "text"), [("config", 2, "prog: f.yaml: a.b: wrong"), ("store", 3, "does not answer")]
)
def test_what_the_operator_can_mend_is_one_line(mode: str, status: int, text: str) -> None:
    _, err = (process := start(mode)).communicate(timeout=30)
    assert process.returncode == status
    assert text in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_cleanly(number: signal.Signals) -> None:
    with start("serve") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "serving\n"
        process.send_signal(number)
        out, _ = process.communicate(timeout=30)
    assert out == f"stopped by {number.name}\n"
    assert process.returncode == 0


def test_a_second_signal_ends_a_program_that_hangs() -> None:
    with start("stubborn") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "serving\n"
        process.terminate()
        assert process.stdout.readline() == "stopping\n"
        process.terminate()
        process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM


def test_systemd_hears_of_readiness_life_and_the_end(tmp_path: Path) -> None:
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(path))
        sock.settimeout(30)
        with start("serve", NOTIFY_SOCKET=str(path), WATCHDOG_USEC="100000") as process:
            heard = {sock.recv(100) for _ in range(4)}
            assert {b"READY=1", b"WATCHDOG=1"} <= heard
            process.terminate()
            while sock.recv(100) != b"STOPPING=1":
                pass
            process.communicate(timeout=30)
    assert process.returncode == 0


def test_outside_systemd_nothing_is_sent() -> None:
    notifier = Notifier({})
    notifier.ready()
    assert notifier.watchdog_interval is None


def test_another_process_watchdog_is_not_ours() -> None:
    theirs = {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}
    assert Notifier(theirs).watchdog_interval is None
    assert Notifier(theirs | {"WATCHDOG_PID": str(os.getpid())}).watchdog_interval == 0.5


def test_a_supervisor_that_is_gone_does_no_harm(tmp_path: Path) -> None:
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "absent")}).ready()
