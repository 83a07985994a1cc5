"""Cgroups and homes of engines, on made-up trees; test_agent_systemd.py has the real ones."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Protocol

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_agent.errors import AttemptError, RejectedError, SurvivorsError
from llmgw_agent.process import choose, enter, systemd
from llmgw_agent.process import services as services_module
from llmgw_agent.process.cgroup import Cgroup, Hierarchy, cgroup_of, hierarchies
from llmgw_agent.process.end import end_family
from llmgw_agent.process.home import NOWHERE, Home, engine_name, home_of, homes_in, lives_at, slice_name
from llmgw_agent.process.identity import Marker, Owner, boot_id, is_running
from llmgw_agent.process.isolation import InCgroups, Order, WriterOrder
from llmgw_agent.process.services import InServices, remove_stale, written
from llmgw_agent.process.spawn import clean_environment
from llmgw_agent.process.watch import Watch
from llmgw_agent.shard.engine import uninterrupted
from llmgw_agent.shard.exits import classify
from llmgw_agent.shard.state import SavedProcess
from llmgw_base.clock import SystemClock
from llmgw_base.config import ConfigError

V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate"
HYBRID = """31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
36 31 0:33 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer
38 31 0:35 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
39 31 0:36 / /sys/fs/cgroup/my\\040systemd rw - cgroup cgroup rw,name=systemd
40 31 0:37 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
"""
OWNER = Owner("c", "n")


def group(folder: Path, *pids: int, **files: str) -> Cgroup:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    return Cgroup(folder)


def process(proc: Path, name: str, cgroup: str, mounts: str = HYBRID) -> None:
    (proc / name).mkdir(parents=True)
    (proc / name / "cgroup").write_text(cgroup)
    (proc / name / "mountinfo").write_text(mounts)


def test_a_cgroup_is_all_below_it_and_empty_when_it_is_gone(tmp_path: Path) -> None:
    one = group(tmp_path / "a", 11, 0)
    group(tmp_path / "a/b", 12, memory_events="oom 2\noom_kill 9\n")
    assert one.pids() == {11, 12}, "0 is somebody in another PID namespace"
    assert one.oom_kills == 0
    assert Cgroup(tmp_path / "a/b").oom_kills == 9
    nobody = Cgroup(tmp_path / "none")
    assert (nobody.pids(), nobody.populated, nobody.oom_kills, nobody.remove()) == (set(), False, 0, True)
    nobody.kill()


def test_the_kernels_word_on_who_is_left_counts_and_without_it_those_who_live(tmp_path: Path) -> None:
    one = group(tmp_path / "a", os.getpid(), 2**22 + 1)
    assert {who.pid for who in one.members()} == {os.getpid()}
    assert one.populated
    assert not group(tmp_path / "a", os.getpid(), cgroup_events="populated 0\nfrozen 0\n").populated
    assert group(tmp_path / "a", cgroup_events="populated 1\nfrozen 0\n").populated


def test_a_cgroup_is_removed_from_below_and_stays_while_it_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "a/b/c").mkdir(parents=True)
    assert Cgroup(tmp_path / "a").remove()
    assert not (tmp_path / "a").exists()
    busy = group(tmp_path / "busy")
    assert not busy.remove(), "real ones are busy while somebody is in them"


def test_hierarchies_are_found_the_best_first(tmp_path: Path) -> None:
    assert hierarchies(tmp_path / "none") == []
    process(tmp_path / "v2", "self", "0::/system.slice/agent.service\n", V2)
    mount = Path("/sys/fs/cgroup")
    assert hierarchies(tmp_path / "v2") == [Hierarchy("2", mount, mount / "system.slice/agent.service")]
    process(tmp_path / "v1", "self", "8:pids:/p\n6:freezer:/\n4:memory:/x\n1:name=systemd:/s\n0::/u (deleted)\n")
    assert hierarchies(tmp_path / "v1") == [
        Hierarchy("2", mount / "unified", mount / "unified/u"),
        Hierarchy("name=systemd", mount / "my systemd", mount / "my systemd/s"),
        Hierarchy("pids", mount / "pids", mount / "pids/p"),
        Hierarchy("freezer", mount / "freezer", mount / "freezer"),
    ]


def test_where_a_process_lives_is_told_by_its_cgroup_in_any_hierarchy(tmp_path: Path) -> None:
    mount = tmp_path / "fs"
    mounts = f"1 1 0:1 / {mount}/unified rw - cgroup2 x rw\n2 1 0:2 / {mount}/systemd rw - cgroup x rw,name=systemd\n"
    unit = f"{engine_name('m-1.0', 'ab12')}.service"
    place = f"llmgw.slice/{slice_name(OWNER)}.slice/{unit}"
    process(tmp_path, "self", "0::/\n", mounts)
    process(tmp_path, "7", f"1:name=systemd:/{place}\n0::/\n")
    (mount / "unified").mkdir(parents=True)
    (mount / "systemd" / place).mkdir(parents=True)
    assert [each.folder for each in cgroup_of(7, tmp_path)] == [mount / "unified", mount / "systemd" / place]
    home = home_of(7, "ab12", tmp_path)
    assert home == Home(unit, str(mount / "systemd" / place))
    assert home_of(7, "other", tmp_path) == home_of(8, "ab12", tmp_path) == NOWHERE
    assert lives_at(7, OWNER, tmp_path)
    assert not lives_at(7, Owner("another", "n"), tmp_path)
    assert homes_in((mount / "systemd" / place).parent, "m-1.0") == [home]
    assert homes_in(tmp_path / "none") == []


@given(st.text(min_size=1, max_size=300), st.text(min_size=1, max_size=300))
def test_a_home_belongs_to_one_shard_and_its_name_suits_systemd(one: str, other: str) -> None:
    name = f"{engine_name(one, '0123456789abcdef')}.service"
    assert Home(name, f"/x/{name}").belongs_to(one)
    assert Home(name).belongs_to(other) == (one == other)
    assert len(name) < 256
    assert set(name) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789:-_.")


def test_a_home_is_not_taken_for_that_of_a_shard_with_a_longer_name() -> None:
    assert not Home(engine_name("m-1.0", "a")).belongs_to("m")
    assert not Home(engine_name("m", "a")).belongs_to("m-1.0")


def run_enter(*argv: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    whole = [sys.executable, "-I", "-S", enter.__file__, *argv]
    return subprocess.run(whole, env=environment, capture_output=True, text=True, check=False, timeout=60)


def test_a_program_becomes_itself_in_its_cgroup_with_the_environment_that_it_was_given(tmp_path: Path) -> None:
    script = "import os, sys; print(os.getpid(), sorted(os.environ.items()), sys.argv[1:])"
    argv = (sys.executable, "python", "-c", script, "$HOME", "%n")
    # No locale: Python, which this passes through, adds to its environment then.
    done = run_enter("cgroup", str(tmp_path), *argv, environment={"A": "ä", "LC_ALL": "C"})
    assert done.returncode == 0, done.stderr
    assert "('A', 'ä')" in done.stdout or "\\udc" in done.stdout
    assert "['$HOME', '%n']" in done.stdout
    assert (tmp_path / "cgroup.procs").read_text() == "0"


def test_what_cannot_be_entered_or_started_is_said_in_the_log(tmp_path: Path) -> None:
    done = run_enter("cgroup", str(tmp_path / "none"), "/bin/true", "true")
    assert (done.returncode, done.stderr) == (
        enter.CANNOT_ENTER,
        f"[llmgw] cannot join the cgroup {tmp_path / 'none'}: No such file or directory\n",
    )
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF of another machine")
    broken.chmod(0o755)
    done = run_enter("cgroup", str(tmp_path), str(broken), "broken")
    assert done.returncode == enter.CANNOT_RUN
    reason = classify(done.returncode, done.stderr.splitlines(), (), was_ready=False)
    assert reason.final
    assert reason.text.startswith(f"the program cannot be started: {broken}: Exec format error.")
    assert not classify(1, ["a user asked: [llmgw] cannot start x"], (), was_ready=True).final


def test_an_order_is_read_removed_and_carried_out(tmp_path: Path) -> None:
    pipe = tmp_path / "out"
    pipe.touch()
    order = {
        "program": "/bin/sh",
        "argv": ["sh", "-c", 'echo "$KEY" "$PWD"; echo $0 >&2'],
        "environment": {"KEY": "secret"},
        "folder": str(tmp_path),
        "output": str(pipe),
        "namespaces": {},
    }
    with written(tmp_path / "orders", "a1", order) as file:
        assert file.stat().st_mode & 0o777 == 0o600
        assert file.parent.stat().st_mode & 0o777 == 0o700
        assert run_enter("order", str(file)).returncode == 0
        assert not file.exists()
    assert pipe.read_text() == f"secret {tmp_path}\nsh\n"
    with written(tmp_path / "orders", "a2", {**order, "namespaces": {"net": "net:[1]"}}) as file:
        assert run_enter("order", str(file)).returncode == enter.ELSEWHERE
    (tmp_path / "file").touch()
    with pytest.raises(AttemptError, match="cannot be written"), written(tmp_path / "file/orders", "a3", order):
        pass


def test_who_escaped_is_ended_through_the_cgroup(tmp_path: Path) -> None:
    escaped = subprocess.Popen(["sleep", "600"], env={}, start_new_session=True)
    try:
        asyncio.run(end_family(set, SystemClock(), grace=30, cgroups=[group(tmp_path, escaped.pid)]))
        assert escaped.poll() == -signal.SIGTERM
    finally:
        escaped.kill()
        escaped.wait()


def test_nothing_begins_while_the_kernel_says_that_somebody_is_left(tmp_path: Path) -> None:
    one = group(tmp_path, cgroup_events="populated 1\n")
    with pytest.raises(SurvivorsError, match="processes that the agent cannot see do not die"):
        asyncio.run(end_family(set, SystemClock(), grace=0, kill_wait=0.2, cgroups=[one]))
    assert (tmp_path / "cgroup.kill").read_text() == "1"


def test_an_engine_starts_in_a_cgroup_that_its_owner_finds_again(tmp_path: Path) -> None:
    async def body() -> None:
        isolation = InCgroups(tmp_path)
        marker = Marker(Owner("c", f"n-{uuid.uuid4().hex[:8]}"), "m/1.0", 1, "ab12", 1, "wish")
        null = os.open(os.devnull, os.O_RDWR)
        environment = clean_environment(os.environ, marker.environment())
        try:
            order = Order(marker, ["sleep", "600"], environment, null, Path(os.devnull), boot_id())
            who, home = await isolation.start(order)
            with pytest.raises(RejectedError, match="no-such-program"):
                await isolation.start(Order(marker, ["no-such-program"], environment, null, Path(os.devnull), boot_id()))
        finally:
            os.close(null)
        watch = Watch.open(who)
        assert watch is not None
        try:
            assert home == isolation.expected(marker.owner, "m/1.0", "ab12")
            assert isolation.homes(marker.owner) == isolation.homes(marker.owner, "m/1.0") == [home]
            assert isolation.homes(OWNER) == isolation.homes(marker.owner, "m") == []
            assert is_running(who, boot_id())
        finally:
            watch.send(signal.SIGKILL)
        assert await watch.wait() == -signal.SIGKILL

    asyncio.run(body())


@pytest.mark.parametrize("root", [True, False])
def test_without_systemd_and_cgroups_process_groups_are_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, root: bool
) -> None:
    monkeypatch.setattr(systemd, "RUNNING", tmp_path if not root else tmp_path / "none")
    monkeypatch.setattr(os, "geteuid", lambda: 0 if root else 1000)
    (tmp_path / "file").touch()
    known: list[Hierarchy] = [
        Hierarchy("name=systemd", tmp_path, tmp_path),
        Hierarchy("2", tmp_path / "file", tmp_path / "file"),
    ]
    monkeypatch.setattr(choose, "hierarchies", lambda: known)
    if root:
        del known[0]
    found, against = asyncio.run(choose.choose("auto", 3, SystemClock()))
    first = "systemd: systemd does not run here" if root else "systemd: the agent is not root, so it may not start services"
    assert (found.kind, against) == ("group", f"{first}; cgroup: {tmp_path}/file/llmgw: Not a directory")
    with pytest.raises(ConfigError, match=r"isolation: cgroup cannot be had on this node: cgroup: .*Not a directory"):
        asyncio.run(choose.choose("cgroup", 3, SystemClock()))
    known.clear()
    with pytest.raises(ConfigError, match="no cgroup file system is mounted"):
        asyncio.run(choose.choose("cgroup", 3, SystemClock()))


class Say(Protocol):
    def __call__(self, script: str, program: str = "systemctl") -> None: ...


@pytest.fixture
def systemctl(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Say:
    """Makes up a program of systemd; ``{root}`` in its script is the test's folder."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def say(script: str, program: str = "systemctl") -> None:
        path = folder / program
        path.write_text(f"#!/bin/sh\n{script.replace('{root}', str(tmp_path))}\n")
        path.chmod(0o755)

    return say


SHOWN = {
    "running": ("7", "0", "0", "success", (None, False)),
    "exited": ("0", "1", "3", "exit-code", (3, False)),
    "killed": ("0", "2", "9", "oom-kill", (-9, True)),
    "dumped": ("0", "3", "6", "core-dump", (-6, False)),
}


@pytest.mark.parametrize("name", SHOWN)
def test_what_systemd_knows_of_a_service(systemctl: Say, name: str) -> None:
    main, code, status, result, expected = SHOWN[name]
    lines = [f"MainPID={main}", "ExecMainPID=7", f"ExecMainCode={code}", f"ExecMainStatus={status}", f"Result={result}"]
    systemctl(f"cat <<'X'\n{chr(10).join(lines)}\nControlGroup=/x/y\nX")
    unit = asyncio.run(systemd.show("x.service"))
    assert (unit.main_pid, unit.alive, unit.status, unit.oom, unit.cgroup) == (7, main == "7", *expected, "/x/y")
    if not unit.alive:
        assert asyncio.run(systemd.ended("x.service", SystemClock())) == unit


def test_a_systemd_that_refuses_or_is_silent_is_an_error_that_says_so(systemctl: Say) -> None:
    systemctl("echo 'Access denied' >&2; exit 4")
    with pytest.raises(systemd.SystemdError, match="systemctl failed: Access denied"):
        asyncio.run(systemd.show("x.service"))
    asyncio.run(systemd.forget("x.service"))
    systemctl("exec sleep 60")
    with pytest.raises(systemd.SystemdError, match=r"no answer from systemd within 0.2 s"):
        asyncio.run(systemd.call("systemctl", "show", patience=0.2))


def services(root: Path) -> InServices:
    return InServices(root / "llmgw.slice", root / "orders", 3, SystemClock())


def an_order(output: int) -> Order:
    marker = Marker(OWNER, "m-1.0", 1, "ab12", 1, "wish")
    return Order(marker, ["sleep", "$HOME"], {"PATH": os.environ["PATH"], "KEY": "secret"}, output, Path(os.devnull), boot_id())


def test_a_service_is_asked_for_without_its_secrets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, systemctl: Say) -> None:
    systemctl("printf 'MainPID=0\nExecMainPID=7\nExecMainCode=1\nExecMainStatus=3\n'")
    # Takes the order as enter.py would.
    systemctl('for last; do :; done; printf "%s\\n" "$@" > {root}/asked; cp "$last" {root}/order; rm "$last"', "systemd-run")

    who, home = asyncio.run(services(tmp_path).start(an_order(-1)))

    assert (who.pid, is_running(who, boot_id())) == (7, False), "it has ended before it was looked at"
    unit = "llmgw-engine-m-1.0-ab12.service"
    assert home == Home(unit, f"{tmp_path}/llmgw.slice/{slice_name(OWNER)}.slice/{unit}")
    asked = (tmp_path / "asked").read_text().splitlines()
    assert {
        f"--unit={unit}",
        f"--slice={slice_name(OWNER)}.slice",
        "--setenv=LLMGW_SHARD=m-1.0",
        "--property=OOMPolicy=kill",
    } <= set(asked)
    assert not [each for each in asked if "secret" in each]
    order = json.loads((tmp_path / "order").read_text())
    assert (order["argv"], order["environment"]["KEY"]) == (["sleep", "$HOME"], "secret")


def test_a_service_that_was_perhaps_started_is_ended_before_the_failure_is_told(tmp_path: Path, systemctl: Say) -> None:
    systemctl('echo "$1" >> {root}/called')
    systemctl("echo 'Transport endpoint is not connected'; exit 1", "systemd-run")
    with pytest.raises(AttemptError, match="systemd-run failed: Transport endpoint"):
        asyncio.run(services(tmp_path).start(an_order(-1)))
    assert (tmp_path / "called").read_text() == "stop\nreset-failed\n"
    assert not list((tmp_path / "orders").iterdir()), "nobody shall find the secrets"


def test_a_service_that_does_not_begin_is_ended_and_named(
    tmp_path: Path, systemctl: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services_module, "ORDER_PATIENCE", 0.05)
    systemctl('echo "$1" >> {root}/called')
    systemctl("exit 0", "systemd-run")
    with pytest.raises(AttemptError, match=r"did not begin within 0.05 s.*journalctl -u llmgw-engine-m-1.0-ab12.service"):
        asyncio.run(services(tmp_path).start(an_order(-1)))
    assert (tmp_path / "called").read_text() == "stop\nreset-failed\n"


def test_a_log_is_written_even_when_systemd_does_not_help(tmp_path: Path, systemctl: Say) -> None:
    systemctl("exit 1", "systemd-run")
    argv = [sys.executable, "-c", f"open({str(tmp_path / 'written')!r}, 'w').write('x')"]
    order = WriterOrder(OWNER, "ab12", argv, {**os.environ, "LLMGW_LOGMON": "n/ab12"}, boot_id())

    async def body() -> None:
        watch = Watch.open(await services(tmp_path).start_writer(order))
        assert watch is not None
        assert await watch.wait() == 0

    asyncio.run(body())
    assert (tmp_path / "written").exists()


def test_orders_that_nobody_read_are_removed_in_time(tmp_path: Path) -> None:
    for name, age in (("old.json", 400), ("new.json", 100)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    remove_stale(tmp_path)
    remove_stale(tmp_path / "none")
    assert [each.name for each in tmp_path.iterdir()] == ["new.json"]


def test_the_oom_killer_is_named_first() -> None:
    reason = classify(1, ["RuntimeError: worker died"], (), was_ready=True, oom=True)
    assert "exited with 1: the kernel killed a process of it because the host's memory ran out" in reason.text
    assert not reason.final


def test_state_files_of_before_and_of_now() -> None:
    old = {"pid": 7, "start_ticks": 8, "boot_id": "b", "started_at": 9.0}
    assert SavedProcess.model_validate_json(json.dumps(old)).home == NOWHERE
    new = SavedProcess.model_validate(old | {"unit": "x.service", "cgroup": "/y"})
    assert SavedProcess.model_validate_json(new.model_dump_json()).home == Home("x.service", "/y")


def test_a_start_that_must_be_whole_is_not_interrupted() -> None:
    async def body() -> None:
        kept: list[int] = []
        gate = asyncio.Event()

        async def work() -> int:
            await gate.wait()
            return 1

        async def fails() -> int:
            await gate.wait()
            raise AttemptError("x")

        tasks = [asyncio.create_task(uninterrupted(each(), kept.append)) for each in (work, fails)]
        for _ in range(2):
            await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
        await asyncio.sleep(0)
        assert not any(task.done() for task in tasks)
        gate.set()
        assert [type(each) for each in await asyncio.gather(*tasks, return_exceptions=True)] == [asyncio.CancelledError] * 2
        assert kept == [1]
        with pytest.raises(AttemptError):
            await uninterrupted(fails(), kept.append)
        await uninterrupted(work(), kept.append)
        assert kept == [1, 1]

    asyncio.run(body())
