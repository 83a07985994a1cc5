"""The leader is killed or stopped: inference goes on and a standby leads."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from llmgw_testing.load import Load
from llmgw_testing.stack import Daemon, Stack, fake_model
from llmgw_testing.wait import wait_until


@contextmanager
def two_coordinators(root: Path) -> Iterator[tuple[Stack, Daemon, Daemon]]:
    """A stack with a serving model; yields the leader and the standby."""
    with Stack(root) as stack:
        stack.coordinator("c1")
        stack.coordinator("c2")
        stack.agent()
        stack.router()
        stack.apply(fake_model("m"))
        stack.ready("m", 1)
        leader = stack.leader()
        assert leader is not None
        yield stack, stack.daemons[leader], stack.daemons["c2" if leader == "c1" else "c1"]


def test_a_killed_leader_is_succeeded_within_its_lease_and_two_seconds(tmp_path: Path) -> None:
    with two_coordinators(tmp_path) as (stack, leader, standby), Load(stack.daemons["r1"].url, "m") as load:
        engines = stack.engines()
        leader.kill()
        began = time.monotonic()
        wait_until(lambda: stack.leader() == standby.name, within=stack.leader_ttl + 2, what="the standby to lead")
        took = time.monotonic() - began
        print(f"succeeded after {took:.2f} s with a lease of {stack.leader_ttl} s")
        stack.ctl("model", "scale", "m", "2")
        stack.ready("m", 2)
        assert set(engines) < set(stack.engines())
        assert load.stop() > 0
    assert load.failures == []


def test_a_stopped_leader_hands_over_at_once(tmp_path: Path) -> None:
    with two_coordinators(tmp_path) as (stack, leader, standby), Load(stack.daemons["r1"].url, "m") as load:
        since = len(standby.log())
        leader.process.terminate()
        wait_until(
            lambda: "this coordinator leads" in standby.log()[since:],
            within=1.0,
            what="the standby to say that it leads",
            every=0.01,
        )
        assert leader.process.wait(20) == 0
        assert stack.leader() == standby.name
        assert load.stop() > 0
    assert load.failures == []


def test_without_any_coordinator_inference_goes_on(tmp_path: Path) -> None:
    with two_coordinators(tmp_path) as (stack, leader, standby), Load(stack.daemons["r1"].url, "m") as load:
        leader.kill()
        standby.kill()
        before = load.done
        wait_until(lambda: load.done > before + 20, within=30, what="requests after the coordinators' end")
        leader.start()
        wait_until(lambda: stack.leader() == leader.name, within=60, what="the restarted coordinator to lead")
        assert load.stop() > 0
    assert load.failures == []
