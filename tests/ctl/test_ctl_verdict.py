"""When a wait ends, and with what."""

from __future__ import annotations

from typing import Any, cast

import pytest

from llmgw_ctl.api import ModelView, ReplicaView
from llmgw_ctl.watch.verdict import FAILED_SETTLE, MAX_RESTARTS, MOVING, STALE_SECONDS, Judge, Outcome, Wish, describe


def replica(state: str = "Ready", **more: Any) -> ReplicaView:
    base = ReplicaView(id="m-1", model="m", node="n1", state=state, reason="", restarts=0, generation=1, url="http://e")
    return cast(ReplicaView, {**base, **more})


def view(state: str, ready: int = 0, wanted: int = 1, reason: str = "", replicas: list[ReplicaView] | None = None) -> ModelView:
    return ModelView(
        name="m", state=state, ready=ready, wanted=wanted, reason=reason, replicas=replicas or [], spec={"generation": 1}
    )


def judge(wish: Wish = Wish.SERVE, **more: Any) -> Judge:
    return Judge("m", wish, **more)


def test_ready_with_all_replicas_of_the_wished_generation_is_done_at_once() -> None:
    found = judge(generation=1).look(view("Ready", 1, replicas=[replica()]), 0)
    assert found.outcome is Outcome.FULFILLED


def test_an_older_generation_counts_for_nothing() -> None:
    one = judge(generation=2)
    for now in (0, 100):
        assert one.look(view("Ready", 1, replicas=[replica()]), now).outcome is Outcome.WAITING


def test_ready_with_replicas_of_an_older_generation_must_last() -> None:
    one = judge(generation=1)
    old = view("Ready", 1, replicas=[replica(generation=0)])
    assert one.look(old, 0).outcome is Outcome.WAITING
    assert one.look(old, STALE_SECONDS).outcome is Outcome.FULFILLED


def test_ready_while_a_replica_too_many_is_there_is_not_done() -> None:
    many = view("Ready", 1, replicas=[replica(), replica("Draining", id="m-2")])
    assert judge().look(many, 0).outcome is Outcome.WAITING


def test_ready_without_a_published_address_is_not_done() -> None:
    one = judge()
    assert one.look(view("Ready", 1, replicas=[replica(url=None)]), 0).outcome is Outcome.WAITING
    assert one.look(view("Ready", 1, replicas=[replica()]), 1).outcome is Outcome.FULFILLED


def test_scaled_to_zero_is_done() -> None:
    assert judge().look(view("Scaled to zero", wanted=0), 0).outcome is Outcome.FULFILLED


@pytest.mark.parametrize("state", ["Pending", "Degraded"])
def test_stuck_for_the_settle_time_is_hopeless_with_the_reason(state: str) -> None:
    one = judge(settle=10)
    stuck = view(state, reason="no node has 40 GiB free; lower memory")
    assert one.look(stuck, 0).outcome is Outcome.WAITING
    assert one.look(stuck, 9.9).outcome is Outcome.WAITING
    last = one.look(stuck, 10)
    assert (last.outcome, last.text) == (Outcome.HOPELESS, "no node has 40 GiB free; lower memory")


def test_a_new_reason_starts_the_settle_time_again() -> None:
    one = judge(settle=10)
    one.look(view("Pending", reason="a"), 0)
    assert one.look(view("Pending", reason="b"), 9).outcome is Outcome.WAITING
    assert one.look(view("Pending", reason="b"), 18).outcome is Outcome.WAITING
    assert one.look(view("Pending", reason="b"), 19).outcome is Outcome.HOPELESS


@pytest.mark.parametrize("state", sorted(MOVING))
def test_a_replica_on_its_way_is_waited_for(state: str) -> None:
    one = judge(settle=10)
    busy = view("Degraded", ready=1, wanted=2, reason="x", replicas=[replica(), replica(state, id="m-2")])
    one.look(busy, 0)
    assert one.look(busy, 1000).outcome is Outcome.WAITING


def test_failed_is_hopeless_after_a_short_while_with_the_replicas_reason() -> None:
    one = judge(settle=10)
    failed = view("Failed", replicas=[replica("Rejected", reason="no such file /m.gguf; check the source")])
    assert one.look(failed, 0).outcome is Outcome.WAITING
    last = one.look(failed, FAILED_SETTLE)
    assert last.outcome is Outcome.HOPELESS
    assert "no such file /m.gguf" in last.text


def test_a_failure_of_the_spec_before_does_not_count() -> None:
    one = judge()
    one.look(view("Failed", reason="old"), 0)
    assert one.look(view("Progressing", replicas=[replica("Starting")]), 1).outcome is Outcome.WAITING
    assert one.look(view("Ready", 1, replicas=[replica()]), 5).outcome is Outcome.FULFILLED


def test_restarting_again_and_again_is_hopeless() -> None:
    one = judge()
    for count in range(MAX_RESTARTS):
        crashing = view("Progressing", replicas=[replica("Starting", restarts=5 + count, reason="exit 1: out of memory")])
        assert one.look(crashing, count * 20).outcome is Outcome.WAITING
    last = one.look(view("Progressing", replicas=[replica("Starting", restarts=5 + MAX_RESTARTS, reason="exit 1")]), 99)
    assert last.outcome is Outcome.HOPELESS
    assert "failed 3 times: exit 1" in last.text


def test_removal_waits_until_the_model_is_gone() -> None:
    one = judge(Wish.REMOVE)
    assert one.look(view("Failed", reason="x"), 0).outcome is Outcome.WAITING
    assert one.look(view("Removing"), 100).outcome is Outcome.WAITING
    assert one.look(None, 101).outcome is Outcome.FULFILLED


def test_a_model_that_somebody_removes_meanwhile_is_hopeless() -> None:
    assert judge().look(None, 0).outcome is Outcome.HOPELESS
    assert judge().look(view("Removing"), 0).outcome is Outcome.HOPELESS


def test_a_description_names_the_replicas_that_are_not_ready() -> None:
    many = [replica("Starting", id=f"m-{number}") for number in range(5)]
    text = describe(view("Progressing", wanted=5, replicas=many))
    assert text == "Progressing, 0 of 5 ready: m-0 on n1 Starting, m-1 on n1 Starting, m-2 on n1 Starting and 2 more"
