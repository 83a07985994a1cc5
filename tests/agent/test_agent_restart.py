"""When a failed engine is started again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from llmgw_agent.shard.restart import GiveUp, Limits, RestartPolicy, Retry

LIMITS = Limits(attempts=4, interval=100, first_delay=1, longest_delay=3, cooldown=50)


def policy(limits: Limits = LIMITS, spread: float = 0.0, failures: int = 0) -> RestartPolicy:
    return RestartPolicy(limits, lambda: spread, failures)


def test_the_pause_doubles_up_to_its_limit_then_the_breaker_opens() -> None:
    one = policy(Limits(attempts=5, first_delay=1, longest_delay=3))
    answers = [one.failed("it broke.") for _ in range(5)]
    assert [answer.delay for answer in answers if isinstance(answer, Retry)] == [1, 2, 3, 3]
    assert isinstance(answers[-1], GiveUp)


def test_reasons_say_cause_and_what_follows() -> None:
    one = policy()
    assert one.failed("it broke.").reason == "it broke. Attempt 2 of 4 follows in 1.0 s."
    for _ in range(2):
        one.failed("it broke.")
    assert one.failed("it broke.").reason == (
        "it broke. It failed 4 times in a row, so the breaker is open; one more attempt follows after 50 s."
    )


def test_after_the_cooldown_a_single_failure_opens_it_again() -> None:
    one = policy(failures=3)
    assert isinstance(one.failed("x"), GiveUp)
    assert isinstance(one.failed("x"), GiveUp)


def test_being_ready_for_long_makes_it_forget() -> None:
    one = policy(failures=3)
    assert isinstance(one.failed("x", ready_for=99), GiveUp)
    assert isinstance(one.failed("x", ready_for=100), Retry)
    assert one.failures == 1


def test_a_single_attempt_is_possible() -> None:
    assert isinstance(policy(Limits(attempts=1)).failed("x"), GiveUp)


@given(
    attempts=st.integers(1, 50),
    first=st.floats(0.01, 10),
    longest=st.floats(10, 1000),
    spread=st.floats(0, 1),
    ready=st.lists(st.floats(0, 1000), min_size=1, max_size=100),
)
def test_there_is_always_a_pause_and_never_more_than_the_limit_of_failures_in_a_row(
    attempts: int, first: float, longest: float, spread: float, ready: list[float]
) -> None:
    limits = Limits(attempts=attempts, interval=500, first_delay=first, longest_delay=longest, cooldown=77)
    one = policy(limits, spread)
    row = 0
    for seconds in ready:
        row = 1 if seconds >= limits.interval else row + 1
        answer = one.failed("x", seconds)
        assert one.failures == row
        if row >= attempts:
            assert answer == GiveUp(77, answer.reason)
        else:
            assert isinstance(answer, Retry)
            assert first <= answer.delay <= longest * 1.25


@given(st.integers(0, 10), st.integers(0, 10))
def test_a_restart_of_the_agent_changes_nothing(before: int, after: int) -> None:
    whole, first = policy(), policy()
    for _ in range(before):
        whole.failed("x")
        first.failed("x")
    second = policy(failures=first.failures)
    assert [whole.failed("x") for _ in range(after)] == [second.failed("x") for _ in range(after)]
