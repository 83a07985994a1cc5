from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_agent.weights.download import pause
from llmgw_agent.weights.resume import PartState, Step, judge, request_headers, trusted_length, validator
from llmgw_testing.steady import steady

STATE = PartState(url="https://h/f", validator='"v1"', total=100, flushed=30, boot_id="b1")


@pytest.mark.parametrize(
    ("status", "headers", "length", "offset", "expected", "step", "total"),
    [
        (200, {}, 100, 0, None, Step.RESTART, 100),
        (200, {}, 100, 40, 100, Step.RESTART, 100),
        (200, {}, None, 0, 100, Step.RESTART, 100),
        (200, {}, None, 0, None, Step.RESTART, None),
        (200, {}, 99, 0, 100, Step.WRONG, None),
        (200, {"content-encoding": "gzip"}, 10, 0, 100, Step.WRONG, None),
        (206, {"content-range": "bytes 40-99/100"}, 60, 40, 100, Step.APPEND, 100),
        (206, {"content-range": "bytes 40-99/*"}, 60, 40, None, Step.APPEND, 100),
        (206, {"content-range": "bytes 40-98/99"}, 59, 40, 100, Step.WRONG, None),
        (206, {"content-range": "bytes 0-99/100"}, 100, 40, 100, Step.REPEAT, None),
        (206, {}, 60, 40, 100, Step.REPEAT, None),
        (206, {"content-range": "bytes 1-99/100"}, 99, 0, 100, Step.WRONG, None),
        (416, {"content-range": "bytes */100"}, 0, 100, None, Step.COMPLETE, 100),
        (416, {"content-range": "bytes */100"}, 0, 120, None, Step.REPEAT, None),
        (416, {}, 0, 100, 100, Step.REPEAT, None),
        (416, {}, 0, 0, 100, Step.WRONG, None),
        (401, {}, 0, 0, None, Step.DENIED, None),
        (404, {}, 0, 0, None, Step.MISSING, None),
        (429, {}, 0, 0, None, Step.BUSY, None),
        (503, {}, 0, 0, None, Step.BUSY, None),
        (302, {}, 0, 0, None, Step.WRONG, None),
    ],
)
def test_what_an_answer_means(
    status: int, headers: dict[str, str], length: int | None, offset: int, expected: int | None, step: Step, total: int | None
) -> None:
    verdict = judge(status, headers, length, offset, expected)
    assert verdict.step is step
    if total is not None:
        assert verdict.total == total


@steady
@given(
    st.integers(100, 599),
    st.dictionaries(st.sampled_from(["content-range", "content-encoding"]), st.text(max_size=40)),
    st.none() | st.integers(0, 1 << 60),
    st.integers(0, 1 << 60),
    st.none() | st.integers(0, 1 << 60),
)
def test_no_answer_breaks_the_judge_or_appends_elsewhere(
    status: int, headers: dict[str, str], length: int | None, offset: int, expected: int | None
) -> None:
    verdict = judge(status, headers, length, offset, expected)
    if verdict.step is Step.APPEND:
        assert status == 206
        assert headers["content-range"].strip().startswith(f"bytes {offset}-")


def test_how_much_of_a_part_counts() -> None:
    assert trusted_length(80, None, "b1") == 0
    assert trusted_length(80, STATE, "b1") == 80
    assert trusted_length(80, STATE, "b2") == 30
    assert trusted_length(20, STATE, "b2") == 20


def test_how_the_rest_is_asked_for() -> None:
    assert request_headers(0, STATE, "https://h/f", promised=False) == {}
    assert request_headers(40, STATE, "https://h/f", promised=False) == {"Range": "bytes=40-", "If-Range": '"v1"'}
    assert request_headers(40, STATE, "https://other/f", promised=False) is None
    assert request_headers(40, STATE, "https://other/f", promised=True) == {"Range": "bytes=40-"}
    assert request_headers(40, STATE.model_copy(update={"validator": None}), "https://h/f", promised=False) is None


def test_only_strong_validators_count() -> None:
    assert validator({"etag": '"a"', "last-modified": "x"}) == '"a"'
    assert validator({"etag": 'W/"a"', "last-modified": "Mon, 30 Nov 2026 10:00:00 GMT"}) == "Mon, 30 Nov 2026 10:00:00 GMT"
    assert validator({"etag": 'W/"a"'}) is None


def test_pauses_grow_and_follow_the_server() -> None:
    assert [pause(tries, None, 1.0) for tries in (1, 2, 3, 20)] == [0.5, 1.0, 2.0, 30.0]
    assert pause(1, None, 0.0) == 0.25
    assert pause(1, 7.0, 0.5) == 7.5
    assert pause(1, 1e9, 0.0) == 300.0
