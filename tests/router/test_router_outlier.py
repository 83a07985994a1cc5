"""Passive judgement of replicas: ejection with growing time, trial, panic."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from llmgw_router.health.outlier import Record, Rules, usable

RULES = Rules(failures=3, first_seconds=2, max_seconds=60, panic_percent=50)


def test_three_failures_in_a_row_eject() -> None:
    record = Record()
    assert [record.failure(0, RULES, decisive=False) for _ in range(3)] == [False, False, True]
    assert record.ejected


def test_a_good_answer_between_forgives() -> None:
    record = Record()
    for _ in range(5):
        record.failure(0, RULES, decisive=False)
        record.failure(0, RULES, decisive=False)
        assert not record.success(), "it was not ejected, so nothing changed"
    assert not record.ejected


def test_a_refused_connection_ejects_at_once_and_a_good_probe_brings_it_back() -> None:
    record = Record()
    assert record.failure(10, RULES, decisive=True)
    assert record.ejected_until == 12
    assert record.probe_success()
    assert not record.ejected


def test_bad_answers_are_not_outweighed_by_a_good_probe() -> None:
    record = Record()
    for _ in range(3):
        record.failure(10, RULES, decisive=False)
    assert not record.probe_success()
    assert record.ejected
    assert not record.tick(11.9)
    assert record.tick(12)
    assert not record.ejected


def test_on_trial_one_failure_ejects_for_twice_as_long_up_to_the_limit() -> None:
    record = Record()
    for _ in range(3):
        record.failure(0, RULES, decisive=False)
    now = 0.0
    lengths = []
    for _ in range(8):
        lengths.append(record.ejected_until - now)
        now = record.ejected_until
        assert record.tick(now)
        assert record.failure(now, RULES, decisive=False)
    assert lengths == [2, 4, 8, 16, 32, 60, 60, 60]


def test_after_a_good_answer_the_times_begin_anew() -> None:
    record = Record()
    record.failure(0, RULES, decisive=True)
    record.tick(2)
    record.failure(2, RULES, decisive=True)
    assert record.success()
    record.failure(100, RULES, decisive=True)
    assert record.ejected_until == 102


def test_missed_probes_eject_and_keep_out_until_one_succeeds() -> None:
    record = Record()
    assert [record.probe_failure(now, RULES, limit=3, decisive=False) for now in (0, 2, 4)] == [False, False, True]
    assert not record.tick(1000), "time alone does not bring back what still does not answer"
    assert record.probe_success()
    assert not record.ejected


def test_doubt_ends_with_a_probe_or_with_time() -> None:
    record = Record()
    record.doubt(0, 6)
    assert record.ejected
    assert record.tick(6)
    record.doubt(10, 6)
    assert record.probe_success()


@dataclass
class Judged:
    health: Record = field(default_factory=Record)


@given(st.lists(st.booleans(), max_size=12), st.integers(0, 100))
def test_never_nobody_and_all_in_panic(ejected: list[bool], percent: int) -> None:
    rules = Rules(panic_percent=percent)
    replicas = tuple(Judged() for _ in ejected)
    for replica, out in zip(replicas, ejected, strict=True):
        if out:
            replica.health.doubt(0, 5)
    chosen = usable(replicas, rules)
    good = [each for each in replicas if not each.health.ejected]
    assert bool(chosen) == bool(replicas)
    if good and len(good) * 100 >= len(replicas) * percent:
        assert list(chosen) == good
    else:
        assert chosen == replicas
