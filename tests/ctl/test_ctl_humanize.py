"""Figures as people read and type them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_ctl.errors import BadInputError
from llmgw_ctl.humanize import age, duration, parse_duration, parse_moment, size


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0s"),
        (0.44, "0.4s"),
        (9.96, "10s"),
        (12.4, "12s"),
        (59.6, "1m"),
        (192, "3m12s"),
        (3600, "1h"),
        (7_500, "2h5m"),
        (356_400, "4d3h"),
        (-1, "0.0s"),
    ],
)
def test_durations_have_at_most_two_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(None, "-"), (0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (16 * 2**30, "16.0 GiB"), (500 * 2**20, "500 MiB")],
)
def test_sizes(count: int | None, text: str) -> None:
    assert size(count) == text


def test_ages_are_whole_seconds_and_never_negative() -> None:
    assert age(100.0, 105.9) == "5s"
    assert age(100.0, 90.0) == "0s"
    assert age(100.0, 292.9) == "3m12s"
    assert age(None, 1.0) == "-"


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("1.5s", 1.5), ("5m", 300), ("1h30m", 5400), (" 2d ", 172_800), ("1m5", 65)]
)
def test_durations_as_typed(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-5s", "5x", "m", "1s1m"])
def test_what_is_no_duration_is_named_with_an_example(text: str) -> None:
    with pytest.raises(BadInputError) as caught:
        parse_duration(text)
    assert repr(text) in caught.value.message
    assert "90s" in caught.value.remedy


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("10m", 1_769_999_400.0),
        ("0", 1_770_000_000.0),
        ("2026-01-31T08:00:00Z", 1_769_846_400.0),
        ("2026-01-31T09:00:00.5+01:00", 1_769_846_400.5),
        ("9999999d", 0.0),
    ],
)
def test_moments_are_so_long_ago_or_at_a_time(text: str, moment: float) -> None:
    assert parse_moment(text, 1_770_000_000.0) == moment


@pytest.mark.parametrize("text", ["", "soon", "2026-13-01", "-5m"])
def test_what_is_no_moment_is_named_with_an_example(text: str) -> None:
    with pytest.raises(BadInputError) as caught:
        parse_moment(text, 0.0)
    assert repr(text) in caught.value.message
    assert "10m" in caught.value.remedy


@given(st.integers(min_value=10, max_value=10**8))
def test_a_printed_duration_can_be_read_back_within_its_two_units(seconds: int) -> None:
    back = parse_duration(duration(seconds))
    assert abs(back - seconds) <= max(60 if seconds >= 3600 else 0, 3600 if seconds >= 86_400 else 0)


@given(st.floats(min_value=0, max_value=2.0**59))
def test_sizes_never_have_more_than_four_digits(count: float) -> None:
    figure, unit = size(count).split()
    assert float(figure) <= 1024
    assert unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
