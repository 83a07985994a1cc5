"""The program itself: exit statuses, streams, no tracebacks, a quick start, completion."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgw_testing.fake_admin import TOKEN, FakeAdmin, Step

PROGRAM = [sys.executable, "-m", "llmgw_ctl"]
LONG = "a-model-with-quite-a-long-name-for-a-terminal"


@pytest.fixture
def admin() -> Iterator[FakeAdmin]:
    with FakeAdmin() as running:
        yield running


def environment(home: Path, admin: FakeAdmin | None = None, **more: str) -> dict[str, str]:
    dropped = ("LLMGW_", "XDG_", "NO_COLOR", "FORCE_COLOR", "COLUMNS")
    env = {key: value for key, value in os.environ.items() if not key.startswith(dropped)}
    env |= {"HOME": str(home), "TERM": "xterm-256color"}
    if admin is not None:
        env |= {"LLMGW_SERVER": admin.url, "LLMGW_TOKEN": TOKEN}
    return env | more


def run(env: dict[str, str], *args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM, *args], input=stdin, capture_output=True, text=True, env=env, timeout=60, check=False)


def on_terminal(env: dict[str, str], columns: int, *args: str) -> str:
    """What a terminal of that width shows."""
    parent, child = pty.openpty()
    env = env | {"COLUMNS": str(columns), "LINES": "40"}
    with subprocess.Popen([*PROGRAM, *args], stdin=child, stdout=child, stderr=child, env=env, close_fds=True) as process:
        os.close(child)
        shown = b""
        while select.select([parent], [], [], 60)[0]:
            try:
                piece = os.read(parent, 65_536)
            except OSError:  # the other side is closed
                break
            shown += piece
        process.wait(60)
    os.close(parent)
    return shown.decode()


def test_errors_are_two_lines_on_stderr_and_never_a_traceback(tmp_path: Path) -> None:
    done = run(environment(tmp_path), "--server", "http://127.0.0.1:1", "status")
    assert done.returncode == 3
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "error: cannot reach the coordinator at http://127.0.0.1:1: connection refused",
        "remedy: start it, or correct the address (from --server)",
    ]


def test_a_running_up_is_suggested_when_nothing_is_known(tmp_path: Path) -> None:
    done = run(environment(tmp_path, LLMGW_SERVER="http://127.0.0.1:1"), "status")
    assert "from LLMGW_SERVER" in done.stderr


def test_nothing_asked_shows_the_help(tmp_path: Path) -> None:
    done = run(environment(tmp_path))
    assert "Usage: llmgwctl" in done.stdout + done.stderr
    assert done.returncode == 2


def test_a_pipe_gets_whole_lines_without_colours(tmp_path: Path, admin: FakeAdmin) -> None:
    admin.add(LONG, Step("Pending", ready=0, replica=None, reason="word " * 60))
    done = run(environment(tmp_path, admin), "model", "list")
    assert "\x1b" not in done.stdout
    assert len(done.stdout.splitlines()) == 2
    assert LONG in done.stdout


@pytest.mark.parametrize("columns", [80, 140])
def test_a_terminal_gets_colours_folded_reasons_and_whole_names(tmp_path: Path, admin: FakeAdmin, columns: int) -> None:
    admin.add(LONG, Step("Pending", ready=0, replica=None, reason="word " * 60))
    shown = on_terminal(environment(tmp_path, admin), columns, "status")
    assert "\x1b[33mPending" in shown
    assert LONG in shown
    assert "…" not in shown
    plain = on_terminal(environment(tmp_path, admin, NO_COLOR="1"), columns, "status")
    assert "\x1b[33m" not in plain
    assert max(len(line) for line in re.sub(r"\x1b\[[0-9;]*m|\r", "", plain).split("\n")) <= columns


def test_a_reader_that_leaves_is_no_error_worth_a_traceback(tmp_path: Path, admin: FakeAdmin) -> None:
    admin.log = b"x" * 5_000_000
    with subprocess.Popen(
        [*PROGRAM, "replica", "logs", "m-1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(tmp_path, admin),
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()


def test_ctrl_c_while_waiting_is_status_130(tmp_path: Path, admin: FakeAdmin) -> None:
    import signal

    admin.script("m", Step("Progressing", ready=0, replica="Fetching"))
    with subprocess.Popen(
        [*PROGRAM, "model", "serve", "m", "/srv/m.gguf"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(tmp_path, admin),
    ) as process:
        assert process.stderr is not None
        assert b"Fetching" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        assert process.wait(30) == 130
    assert b"Traceback" not in rest
    assert b"no longer waiting" in rest


def test_version_imports_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys; from llmgw_ctl.app import build; build(); "
        "heavy = {'aiohttp', 'pydantic', 'openai', 'grpc', 'psutil', 'yaml'} & set(sys.modules); "
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(tmp_path), check=False)
    assert done.returncode == 0, done.stderr


def test_names_are_completed_from_the_coordinator(tmp_path: Path, admin: FakeAdmin) -> None:
    admin.add("alpha")
    admin.add("beta")
    for words, expected in [
        ("llmgwctl model show a", ["alpha"]),
        ("llmgwctl replica logs b", ["beta-00000"]),
        ("llmgwctl node show ", ["n1"]),
        ("llmgwctl model serve m --engine ", ["llamacpp", "vllm", "sglang", "command"]),
    ]:
        parts = words.split(" ")
        env = environment(tmp_path, admin, _LLMGWCTL_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=str(len(parts) - 1))
        assert run(env).stdout.split() == expected, words


def test_completion_says_nothing_when_the_coordinator_is_away(tmp_path: Path) -> None:
    env = environment(
        tmp_path,
        LLMGW_SERVER="http://127.0.0.1:1",
        _LLMGWCTL_COMPLETE="complete_bash",
        COMP_WORDS="llmgwctl model show ",
        COMP_CWORD="3",
    )
    done = run(env)
    assert done.stdout.strip() == ""
    assert "Traceback" not in done.stderr


def test_the_completion_script_can_be_shown(tmp_path: Path) -> None:
    done = run(environment(tmp_path, _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1"), "--show-completion", "bash")
    assert "_LLMGWCTL_COMPLETE" in done.stdout
