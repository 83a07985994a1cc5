"""Who is asked and who is waited for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from llmgw_agent.weights.line import MOST_ASKED, MOST_GIVERS, Member, ahead, givers, pause_between_looks, to_ask

A = Member("a", "http://a", here=False, since=10)
B = Member("b", "http://b", here=False, since=11)
C = Member("c", "http://c", here=True, since=12)
LINE = [C, B, A]
members = st.lists(
    st.builds(Member, st.sampled_from("abcdefgh"), st.just("u"), st.booleans(), st.integers(1, 50)),
    unique_by=(lambda each: each.node, lambda each: each.since),
)


def test_the_first_that_fetches_waits_for_nobody_and_the_others_for_it() -> None:
    assert ahead(LINE, "a", ()) == []
    assert ahead(LINE, "b", ()) == [A]
    assert ahead(LINE, "b", {"a"}) == []
    assert ahead(LINE, "not in it", ()) == [A, B]


def test_those_that_have_all_are_asked_before_those_that_have_some() -> None:
    assert givers(LINE, "b", "sha256:1", {}, (), {}) == [C]
    assert givers(LINE, "b", "sha256:1", {"a": {"sha256:1"}}, (), {"a": 0.1, "c": 0.9}) == [C, A]
    assert givers(LINE, "b", "sha256:1", {"a": {"sha256:1"}}, {"c"}, {}) == [A]
    assert givers(LINE, "c", "sha256:2", {"a": {"sha256:1"}}, (), {}) == []


@given(members, st.sampled_from("abcdefgh"), st.sets(st.sampled_from("abcdefgh")))
def test_exactly_one_of_those_that_can_be_reached_asks_the_source(line: list[Member], me: str, avoided: set[str]) -> None:
    fetching = [each.node for each in line if not each.here and each.node not in avoided]
    first = [node for node in fetching if not ahead(line, node, avoided)]
    assert len(first) == min(1, len(fetching))
    asked = to_ask(line, me, avoided, {})
    assert len(asked) <= MOST_ASKED
    assert len(set(asked)) == len(asked)
    assert all(not each.here and each.node != me and each.node not in avoided for each in asked)
    assert ahead(line, me, avoided)[:1] == asked[:1] or not ahead(line, me, avoided)
    having = {each.node: {"d"} for each in line}
    found = givers(line, me, "d", having, avoided, {})
    assert len(found) <= MOST_GIVERS
    assert me not in {each.node for each in found}


def test_a_long_line_is_looked_at_less_often() -> None:
    assert pause_between_looks(3, 1.0) == 1.0
    assert pause_between_looks(1000, 1.0) == 20.0
