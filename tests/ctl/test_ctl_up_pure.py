"""The pure parts of ``up``: layout, plan, state machine, hints, which etcd to trust."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from llmgw_base.config import EtcdSection
from llmgw_base.net import Listen
from llmgw_ctl.up import hints
from llmgw_ctl.up.etcd import warning_for
from llmgw_ctl.up.layout import Layout
from llmgw_ctl.up.machine import FIRST_PAUSE, LONGEST_PAUSE, STABLE_SECONDS, InvalidTransitionError, Life, State
from llmgw_ctl.up.plan import (
    AGENT,
    COORDINATOR,
    ENGINE_STOP_SECONDS,
    ETCD,
    GRACE,
    ROUTER,
    START_STAGES,
    STOP_ORDER,
    ChildPlan,
    Choices,
    etcd_endpoint,
    local_url,
    plan,
)

LAYOUT = Layout(Path("/home/me/.local/state/llmgw/up"))
CHOICES = Choices(
    Path("/usr/bin/etcd"),
    sys.executable,
    "node-1",
    Listen("127.0.0.1", 8080),
    Listen("127.0.0.1", 7080),
    Listen("127.0.0.1", 7090),
)


# Layout


@given(st.text(alphabet="abcü/", min_size=1, max_size=200))
def test_sockets_always_have_a_path_that_the_kernel_takes(name: str) -> None:
    assert len(bytes(Layout(Path("/state") / name.strip("/")).sockets / "client.sock:0")) < 107


def test_two_long_state_folders_have_different_socket_folders() -> None:
    assert Layout(Path("/" + "a" * 100)).sockets != Layout(Path("/" + "a" * 101)).sockets


def test_everything_is_in_the_state_folder() -> None:
    for path in (*LAYOUT.folders(), LAYOUT.token, LAYOUT.admin, LAYOUT.lock, LAYOUT.log("x"), LAYOUT.config("x")):
        assert path.is_relative_to(LAYOUT.root)


# Plan


@pytest.fixture(scope="module")
def children() -> dict[str, ChildPlan]:
    return plan(LAYOUT, CHOICES)


def test_every_child_starts_and_stops_exactly_once(children: dict[str, ChildPlan]) -> None:
    started = [name for stage in START_STAGES for name in stage]
    assert sorted(started) == sorted(STOP_ORDER) == sorted(children) == sorted(GRACE)


def test_the_store_is_first_up_and_last_down_and_the_agent_first_down() -> None:
    assert START_STAGES[0] == (ETCD,)
    assert STOP_ORDER[0] == AGENT
    assert STOP_ORDER[-1] == ETCD


def test_the_agent_has_time_to_stop_its_engines() -> None:
    assert GRACE[AGENT] > 2 * ENGINE_STOP_SECONDS


def test_etcd_listens_on_no_network(children: dict[str, ChildPlan]) -> None:
    listens = [word for word in children[ETCD].argv if word.startswith("--listen")]
    assert listens
    assert all("=unix://" in word for word in listens)


def test_the_endpoint_is_one_that_all_programs_take() -> None:
    assert EtcdSection(endpoints=[etcd_endpoint(LAYOUT)], trial=True).endpoints == [f"unix://{LAYOUT.sockets}/client.sock:0"]


@pytest.mark.parametrize("name", [COORDINATOR, ROUTER, AGENT])
def test_each_program_accepts_its_configuration(name: str, tmp_path: Path) -> None:
    """The programs themselves say so, as they may not be imported here."""
    child = plan(Layout(tmp_path), CHOICES)[name]
    file = tmp_path / f"{name}.yaml"
    file.write_text(yaml.safe_dump(child.config))
    argv = [*child.argv[: child.argv.index("--config")], "--config", str(file), "--check-config"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("listen", "url"),
    [
        (Listen("127.0.0.1", 1), "http://127.0.0.1:1"),
        (Listen("0.0.0.0", 1), "http://127.0.0.1:1"),
        (Listen("::", 1), "http://[::1]:1"),
        (Listen("10.0.0.5", 1), "http://10.0.0.5:1"),
    ],
)
def test_the_url_for_this_machine(listen: Listen, url: str) -> None:
    assert local_url(listen) == url


# State machine


def test_a_child_that_was_never_ready_is_broken() -> None:
    life = Life("router")
    life.spawned()
    life.exited(1)
    assert life.state is State.BROKEN


def test_a_child_that_was_ready_is_started_again_with_growing_pauses() -> None:
    life, pauses = Life("router"), []
    life.spawned()
    life.ready(0)
    for _ in range(8):
        life.exited(0)
        assert life.state is State.BACKOFF
        pauses.append(life.pause)
        life.spawned()
    assert pauses[:3] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE]
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_PAUSE


def test_running_long_enough_forgives() -> None:
    life = Life("router")
    life.spawned()
    life.ready(0)
    for now in (1.0, 2.0):
        life.exited(now)
        life.spawned()
        life.ready(now)
    life.exited(2 + STABLE_SECONDS)
    assert life.pause == FIRST_PAUSE


def test_what_is_not_in_the_table_raises_with_the_history() -> None:
    life = Life("router")
    life.spawned()
    life.ready(0)
    with pytest.raises(InvalidTransitionError, match=r"router: ready in running; .*idle -spawned-> starting"):
        life.ready(1)


@given(st.lists(st.sampled_from(["spawned", "ready", "exited", "stop"]), max_size=30))
def test_stop_is_possible_in_every_state_and_leads_to_stopped(events: list[str]) -> None:
    life = Life("x")
    for number, event in enumerate(events):
        try:
            getattr(life, event)(*([float(number)] if event in ("ready", "exited") else []))
        except InvalidTransitionError:
            continue
    life.stop()
    if life.state is State.STOPPING:
        life.exited(99)
    assert life.state is State.STOPPED


# Hints


@given(
    st.text(min_size=1, max_size=40).filter(lambda text: "\x00" not in text),
    st.text(max_size=40).filter(lambda t: "\x00" not in t),
)
def test_the_curl_line_survives_a_shell_and_holds_json(model: str, question: str) -> None:
    import json

    words = shlex.split(hints.curl_line("http://127.0.0.1:8080", model, question))
    body = json.loads(words[words.index("-d") + 1])
    assert body["model"] == model
    assert body["messages"][0]["content"] == question


def test_the_snippet_is_python() -> None:
    code = hints.openai_snippet("http://127.0.0.1:8080", 'mo"del', 'What\'s "up"?')
    compile(code, "snippet", "exec")


def test_the_summary_shows_how_to_use_it() -> None:
    text = hints.summary(LAYOUT, "http://r:1", "http://a:1", ["m"], stays=True)
    assert "http://r:1/v1" in text
    assert "curl http://r:1/v1/chat/completions" in text
    assert "from openai import OpenAI" in text
    assert "Ctrl-C" in text
    assert "finds it by itself" in text
    other = hints.summary(LAYOUT, "http://r:1", "http://a:1", ["m"], stays=True, found=False)
    assert f"llmgwctl --server http://a:1 --token-file {LAYOUT.token}" in other
    empty = hints.summary(LAYOUT, "http://r:1", "http://a:1", [], stays=False)
    assert "llmgwctl model serve" in empty
    assert "Ctrl-C" not in empty


# etcd versions


@pytest.mark.parametrize(
    ("version", "wheel", "said"),
    [
        ((3, 5, 16), False, ""),
        ((3, 4, 23), False, ""),
        ((3, 6, 1), False, ""),
        ((3, 5, 16), True, "for trying out"),
        ((3, 5, 1), True, "inconsistent"),
        ((3, 5, 5), False, "inconsistent"),
        ((3, 4, 21), False, "too old"),
    ],
)
def test_versions_not_to_trust_are_told(version: tuple[int, int, int], wheel: bool, said: str) -> None:
    text = warning_for(version, from_wheel=wheel)
    assert said in text
    assert bool(text) == bool(said)
