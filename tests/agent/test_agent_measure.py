"""What is measured of a running engine, which shard a process belongs to, and what of a command line is shown."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from llmgw_agent.engines.pulse import Pulse
from llmgw_agent.process.identity import Marker, Owner, Stat
from llmgw_agent.shard.hide import hidden
from llmgw_agent.shard.holder import shard_of
from llmgw_agent.shard.measure import Throughput

OWNER = Owner("c", "n1")


def told(tokens: float | None, decoded: float | None = None, requests: int = 0) -> Pulse:
    return Pulse(requests, (("w", 0.0),), tokens, decoded)


def test_tokens_that_are_counted_at_each_step_are_divided_by_the_time_between_looks() -> None:
    looks = [(0.0, told(100)), (5.0, told(600)), (5.5, told(700)), (10.0, told(600 + 450)), (15.0, told(1050))]
    meter = Throughput()
    # The third look comes too early to tell; the next one counts from the second.
    assert [meter.look(*look) for look in looks] == [None, 100.0, None, 90.0, 0.0]


def test_tokens_that_are_counted_at_the_end_are_divided_by_the_time_of_decoding_them() -> None:
    meter = Throughput()
    assert meter.look(0.0, told(0, 0.0)) is None
    assert meter.look(5.0, told(0, 0.0, requests=1)) is None, "what runs is not counted yet"
    assert meter.look(10.0, told(40, 1.0)) == 40.0, "idle time is not held against it"
    assert meter.look(15.0, told(640, 61.0)) == 10.0, "a request of a minute does not look like one of five seconds"
    assert meter.look(20.0, told(640, 61.0)) == 0.0


def test_a_new_engine_and_one_without_figures_are_no_rate() -> None:
    meter = Throughput()
    assert [meter.look(at, told(tokens)) for at, tokens in ((0.0, 100), (5.0, 10), (10.0, 60))] == [None, None, 10.0]
    assert meter.look(15.0, told(None)) is None
    assert meter.look(20.0, told(None)) is None


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["serve", "--port", "1"], ["serve", "--port", "1"]),
        (
            ["serve", "--hf-token", "hf_x", "--api_key=k", "--max-tokens", "7"],
            "serve --hf-token *** --api_key=*** --max-tokens 7",
        ),
        (["x", "--password", "--tokenizer", "t", "--token"], "x --password --tokenizer t --token"),
        (["x", "--header=Bearer KEY", "KEY"], ["x", "--header=Bearer ***", "***"]),
    ],
)
def test_secrets_are_not_shown(argv: list[str], shown: str | list[str]) -> None:
    assert list(hidden(argv, "KEY")) == (shown.split() if isinstance(shown, str) else shown)


def test_the_environment_of_a_process_in_an_engines_session_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    # That waits for as long as the process hangs in its driver; what the event loop asks must not.
    monkeypatch.setattr("llmgw_agent.shard.holder.read_environment", lambda pid: pytest.fail("it was read"))
    child = Stat(pid=8, state="D", parent=1, group=7, session=7, start_ticks=1)
    monkeypatch.setattr("llmgw_agent.shard.holder.read_stat", lambda pid: child)
    assert shard_of(8, OWNER, {7: "m-1.0"}) == "m-1.0"


def test_a_process_belongs_to_the_shard_whose_marks_or_ancestors_it_has() -> None:
    marker = Marker(owner=OWNER, shard="m-1.0", epoch=1, attempt="a", port=1, wish="w")
    nap = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
    environment = {**os.environ, **marker.environment()}
    with subprocess.Popen(nap, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as marked:
        try:
            assert marked.stdout is not None
            marked.stdout.readline()
            assert shard_of(marked.pid, OWNER, {}) == "m-1.0"
            assert shard_of(marked.pid, Owner("c", "n2"), {}) is None
            assert shard_of(marked.pid, Owner("c", "n2"), {os.getpid(): "other.0"}) == "other.0", "a child of that one"
        finally:
            marked.communicate(b"")
    assert shard_of(marked.pid, OWNER, {}) is None, "it is gone"
