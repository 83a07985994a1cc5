"""Processes: known by more than their number, noticed when they end, ended for certain."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from llmgw_agent.errors import RejectedError, SurvivorsError
from llmgw_agent.process import end
from llmgw_agent.process.end import end_family, send_signal
from llmgw_agent.process.identity import Identity, Marker, Owner, boot_id, identify, is_running, read_environment, read_stat
from llmgw_agent.process.scan import find_family, find_marked
from llmgw_agent.process.spawn import clean_environment, spawn
from llmgw_agent.process.watch import Watch
from llmgw_base.clock import SystemClock
from llmgw_testing.wait import eventually, wait_until

NOBODY = Owner("c", "nobody")
SLEEP = ["sleep", "600"]
#: Leaves a grandchild behind in its own session, then sleeps; prints the grandchild's pid.
DOUBLE_FORK = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True: time.sleep(60)
    os._exit(0)
os.wait()
while True: time.sleep(60)
"""
IGNORE_TERM = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"


class Shard:
    """A made-up shard with its marker; ends what carries it."""

    def __init__(self) -> None:
        self.node = f"n-{uuid.uuid4().hex[:8]}"
        self.marker = Marker(Owner("c", self.node), "s.0", 1, "attempt", 1, "wish")

    def start(self, *argv: str, output: Path = Path(os.devnull)) -> Identity:
        fd = os.open(output, os.O_RDWR)
        try:
            return spawn(argv, clean_environment(os.environ, self.marker.environment()), fd, boot_id())
        finally:
            os.close(fd)

    def family(self, leader: Identity | None = None) -> set[Identity]:
        return find_family(leader, self.marker.owner, "s.0")


@contextmanager
def shard() -> Iterator[Shard]:
    one = Shard()
    try:
        yield one
    finally:
        for each in one.family():
            send_signal(each, signal.SIGKILL)


@contextmanager
def foreigner() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(SLEEP, stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def marker_seen(one: Shard, count: int = 1) -> None:
    wait_until(lambda: len(find_marked(one.node)) >= count, within=20, what=f"{count} marked processes")


def test_the_stat_line_survives_any_program_name(tmp_path: Path) -> None:
    folder = tmp_path / "42"
    folder.mkdir()
    fields = " ".join(str(number) for number in range(4, 53))
    (folder / "stat").write_text(f"42 (a) b (c)) S {fields}\n")
    stat = read_stat(42, tmp_path)
    assert stat is not None
    assert (stat.state, stat.parent, stat.group, stat.session, stat.start_ticks) == ("S", 4, 5, 6, 22)
    assert read_stat(43, tmp_path) is None


def test_a_started_program_has_its_session_its_marks_and_no_stdin() -> None:
    with shard() as one:
        who = one.start(*SLEEP)
        marker_seen(one)
        assert [(each.identity, each.marker, each.leader) for each in find_marked(one.node)] == [(who, one.marker, True)]
        assert find_marked(one.node, "c") == find_marked(one.node)
        assert find_marked(one.node, "another cluster") == []
        assert find_family(None, Owner("another cluster", one.node), "s.0") == set()
        assert Path(f"/proc/{who.pid}/fd/0").readlink() == Path("/dev/null")
        status = Path(f"/proc/{who.pid}/status").read_text()
        ignored = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigIgn"))
        assert not ignored & (1 << (signal.SIGPIPE - 1)), "an inherited SIG_IGN would hide broken pipes from the engine"


def test_the_agents_own_variables_do_not_reach_the_engine() -> None:
    own = {"PATH": "/bin", "NOTIFY_SOCKET": "/run/x", "LLMGW_SHARD": "other", "HOME": "/root"}
    assert clean_environment(own, {"A": "b"}) == {"PATH": "/bin", "HOME": "/root", "A": "b"}


@pytest.mark.parametrize(("name", "says"), [("no-such-program", "not on this node"), ("/etc/hostname", "not executable")])
def test_a_missing_program_is_rejected_by_name(name: str, says: str) -> None:
    with shard() as one, pytest.raises(RejectedError, match=says) as caught:
        one.start(name)
    assert name in str(caught.value)


def test_the_end_of_a_child_is_noticed_at_once_with_its_status() -> None:
    async def body() -> None:
        with shard() as one:
            who = one.start(*SLEEP)
            watch = Watch.open(who)
            assert watch is not None
            began = time.monotonic()
            watch.send(signal.SIGKILL)
            assert await watch.wait() == -signal.SIGKILL
            assert time.monotonic() - began < 5.0
            assert watch.ended
            assert read_stat(who.pid) is None, "no zombie is left"
            assert Watch.open(who) is None

    asyncio.run(body())


def test_the_end_of_somebody_elses_child_is_noticed_too() -> None:
    async def body() -> None:
        script = f"import subprocess, sys; print(subprocess.Popen({SLEEP!r}, stdout=2).pid, flush=True); sys.stdin.read()"
        pipe = asyncio.subprocess.PIPE
        parent = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdin=pipe, stdout=pipe)
        assert parent.stdout is not None
        pid = int(await parent.stdout.readline())
        who = identify(pid, boot_id())
        assert who is not None
        watch = Watch.open(who)
        assert watch is not None
        await parent.communicate(b"")
        assert not watch.ended
        watch.send(signal.SIGKILL)
        assert await watch.wait() is None, "only its parent may know the status"

    asyncio.run(body())


def test_a_foreign_process_is_never_watched_nor_signalled() -> None:
    async def body() -> None:
        with foreigner() as other:
            stat = read_stat(other.pid)
            assert stat is not None
            wrong_start = Identity(other.pid, stat.start_ticks - 1, boot_id())
            wrong_boot = Identity(other.pid, stat.start_ticks, "another boot")
            for wrong in (wrong_start, wrong_boot):
                assert Watch.open(wrong) is None
                send_signal(wrong, signal.SIGKILL)
                assert not is_running(wrong, boot_id())
                assert other.pid not in {each.pid for each in find_family(wrong, NOBODY, "s.0")}
                await end_family(partial(find_family, wrong, NOBODY, "s.0"), SystemClock(), grace=0)
            assert other.poll() is None
            assert is_running(Identity(other.pid, stat.start_ticks, boot_id()), boot_id())

    asyncio.run(body())


def test_a_double_forked_child_is_family_with_and_without_its_leader() -> None:
    async def body() -> None:
        with shard() as one:
            who = one.start(sys.executable, "-c", DOUBLE_FORK)
            await asyncio.to_thread(marker_seen, one, 2)
            child = next(each for each in find_marked(one.node) if each.identity != who)
            assert os.getsid(child.identity.pid) != who.pid
            send_signal(who, signal.SIGKILL)
            exit_status(who)
            assert one.family(who) == {child.identity}
            await end_family(partial(one.family, who), SystemClock(), grace=5)
            assert one.family(who) == set()
            assert not is_running(child.identity, boot_id())

    asyncio.run(body())


def test_children_without_marks_are_found_through_a_living_leader() -> None:
    async def body() -> None:
        with shard() as one:
            bare = f"import subprocess, time; subprocess.Popen({SLEEP!r}, env={{}}); time.sleep(600)"
            who = one.start(sys.executable, "-c", bare)
            await eventually(lambda: len(one.family(who)) == 2, within=20, what="leader and child")
            (child,) = one.family(who) - {who}
            assert read_environment(child.pid) == {}
            await end_family(partial(one.family, who), SystemClock(), grace=5)
            assert not is_running(child, boot_id())
            exit_status(who)

    asyncio.run(body())


def test_children_without_marks_and_leader_are_found_by_the_log_that_they_write(tmp_path: Path) -> None:
    """vLLM's workers overwrite their environment with their title."""

    async def body() -> None:
        own, other = tmp_path / "own" / "a1.pipe", tmp_path / "other" / "a1.pipe"
        for each in (own, other):
            each.parent.mkdir()
            os.mkfifo(each)
        with shard() as one:
            bare = f"import subprocess, time; subprocess.Popen({SLEEP!r}, env={{}}); time.sleep(600)"
            who, stranger = one.start(sys.executable, "-c", bare, output=own), one.start(*SLEEP, output=other)
            await eventually(lambda: len(one.family(who)) == 3, within=20, what="leader, child and stranger")
            (child,) = one.family(who) - {who, stranger}
            send_signal(who, signal.SIGKILL)
            exit_status(who)
            look = partial(find_family, who, NOBODY, "s.0", logs=own.parent)
            assert one.family(who) == {stranger}, "the child has no mark"
            assert look() == {child}
            assert look(attempts={"a2"}) == set()
            own.unlink()
            await end_family(look, SystemClock(), grace=5)
            assert not is_running(child, boot_id())
            assert is_running(stranger, boot_id())

    asyncio.run(body())


def test_who_ignores_sigterm_or_is_frozen_is_killed_after_the_grace() -> None:
    async def body() -> None:
        with shard() as one:
            deaf = one.start(sys.executable, "-c", IGNORE_TERM)
            frozen = one.start(*SLEEP)
            await asyncio.to_thread(marker_seen, one, 2)
            send_signal(frozen, signal.SIGSTOP)
            await eventually(lambda: _ignores_term(deaf.pid), within=20, what="the signal to be ignored")
            await end_family(one.family, SystemClock(), grace=0.3)
            for who in (deaf, frozen):
                assert not is_running(who, boot_id())
                assert exit_status(who) == -signal.SIGKILL

    asyncio.run(body())


def test_survivors_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        with foreigner() as other:
            stat = read_stat(other.pid)
            assert stat is not None
            stuck = Identity(other.pid, stat.start_ticks, boot_id())
            # A process that hangs in the kernel cannot be had here; one that is not signalled behaves alike.
            monkeypatch.setattr(end, "send_signal", lambda *_: None)
            with pytest.raises(SurvivorsError, match=f"{other.pid}.*do not die of SIGKILL.*reboot"):
                await end_family(lambda: {stuck}, SystemClock(), grace=0.1, kill_wait=0.2)

    asyncio.run(body())


def exit_status(child: Identity) -> int:
    """Takes a dead child off the kernel's list."""
    return os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])


def _ignores_term(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    return any(
        line.startswith("SigIgn") and int(line.split()[1], 16) & (1 << (signal.SIGTERM - 1)) for line in status.splitlines()
    )
