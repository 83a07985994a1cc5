"""What a new wish means for what is there."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_agent.shard.decide import Keep, Refuse, Replace, weigh
from llmgw_agent.shard.state import fingerprint
from llmgw_proto.records import AssignmentRecord


def wish(epoch: int = 1, **fields: Any) -> AssignmentRecord:
    data: dict[str, Any] = {"shard": "m-1.0", "replica": "m-1", "model": "m", "epoch": epoch, "engine": "llamacpp"}
    return AssignmentRecord(**(data | fields))


def test_a_first_wish_starts_something() -> None:
    assert weigh(None, wish(), 0) == Replace()


def test_an_ended_epoch_never_comes_back() -> None:
    verdict = weigh(None, wish(3), 3)
    assert verdict == Refuse("epoch 3 has ended on this node; a new assignment needs an epoch above 3")
    assert weigh(None, wish(4), 3) == Replace()


def test_an_older_epoch_is_refused() -> None:
    assert weigh(wish(5), wish(4), 0) == Refuse("epoch 4 is older than 5, which this node has")


@given(st.integers(1, 50), st.integers(1, 50), st.integers(0, 50))
def test_epochs_only_grow(current: int, new: int, finished: int) -> None:
    verdict = weigh(wish(current), wish(new), finished)
    assert isinstance(verdict, Refuse) == (new < current or new <= finished)
    if new > max(current, finished):
        assert verdict == Replace()


@pytest.mark.parametrize(
    "change",
    [
        {"args": ["-c", "99"]},
        {"env": {"A": "b"}},
        {"source": "/other"},
        {"command": ["x"]},
        {"gpus": ["GPU-1"]},
        {"version": "2"},
        {"engine": "command"},
        {"model": "n"},
        {"peers": ["a", "b"]},
    ],
)
def test_what_concerns_the_process_replaces_it(change: dict[str, Any]) -> None:
    assert weigh(wish(), wish(**change), 0) == Replace()
    assert fingerprint(wish()) != fingerprint(wish(**change))


@pytest.mark.parametrize(
    "change",
    [
        {"policy": "p"},
        {"drain_seconds": 9.0},
        {"generation": 4},
        {"capabilities": ["chat"]},
        {"memory_bytes": 5},
        {"tried": ["a"]},
    ],
)
def test_what_does_not_concern_the_process_keeps_it(change: dict[str, Any]) -> None:
    assert weigh(wish(), wish(**change), 0) == Keep()


def test_the_order_of_variables_does_not_matter() -> None:
    assert fingerprint(wish(env={"a": "1", "b": "2"})) == fingerprint(wish(env={"b": "2", "a": "1"}))
