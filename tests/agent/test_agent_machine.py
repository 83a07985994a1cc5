"""The life of a shard as a table."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_agent.shard.machine import TABLE, InvalidTransition, Machine, Move
from llmgw_proto.records import ShardState as S

STATES = list(S)


def test_every_state_has_its_row() -> None:
    assert set(TABLE) == set(STATES)


def test_stopped_is_the_end_and_can_be_reached_from_everywhere() -> None:
    assert TABLE[S.STOPPED] == frozenset()
    for state in STATES:
        reached = {state}
        for _ in STATES:
            reached |= set(itertools.chain.from_iterable(TABLE[each] for each in reached))
        assert S.STOPPED in reached


def test_only_ready_and_suspect_cannot_skip_draining() -> None:
    assert {state for state in STATES if state is not S.STOPPED and S.STOPPED not in TABLE[state]} == {S.READY, S.SUSPECT}


def test_rejection_comes_before_ready_or_after_failure_only() -> None:
    before = {S.ASSIGNED, S.INSTALLING, S.FETCHING, S.STARTING, S.PROBING, S.FAILED}
    assert {state for state in STATES if S.REJECTED in TABLE[state]} == before


@given(st.lists(st.sampled_from(STATES), max_size=40))
def test_a_walk_either_follows_the_table_or_raises_and_changes_nothing(walk: list[S]) -> None:
    moves: list[Move] = []
    machine = Machine("s", lambda: 0.0, moves.append)
    for state in walk:
        here, told = machine.state, len(moves)
        if state == here:
            machine.to(state)
        elif state in TABLE[here]:
            machine.to(state)
            assert machine.state is state
            assert moves[-1].state is state
        else:
            with pytest.raises(InvalidTransition):
                machine.to(state)
            assert machine.state is here
            assert len(moves) == told


def test_the_error_tells_the_story() -> None:
    machine = Machine("m-1.0", lambda: 0.0)
    machine.to(S.INSTALLING)
    machine.to(S.REJECTED, "no engine")
    with pytest.raises(InvalidTransition) as caught:
        machine.to(S.READY)
    assert str(caught.value) == (
        "shard m-1.0 cannot go from Rejected to Ready; so far: Assigned → Installing → Rejected (no engine)"
    )


def test_a_new_reason_is_a_move_and_the_same_one_is_not() -> None:
    moves: list[Move] = []
    machine = Machine("s", lambda: 7.0, moves.append)
    machine.to(S.FAILED, "a")
    machine.to(S.FAILED, "a")
    machine.to(S.FAILED, "b")
    assert [(move.at, move.reason) for move in moves] == [(7.0, "a"), (7.0, "b")]
