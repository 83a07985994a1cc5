from __future__ import annotations

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw_agent.hardware.cliques import SIZES, tp_groups

Edge = tuple[int, int]


def test_path_is_covered_by_pairs_at_its_ends() -> None:
    # Taking the strongest pair in the middle first would leave two GPUs alone.
    assert tp_groups([0, 1, 2, 3], {(0, 1): 1, (1, 2): 2, (2, 3): 1}) == ((0, 1), (2, 3))


def test_of_two_covers_the_one_with_more_links_is_taken() -> None:
    ring = {(0, 1): 1, (1, 2): 4, (2, 3): 1, (0, 3): 4}
    assert tp_groups([0, 1, 2, 3], ring) == ((0, 3), (1, 2))


def test_cube_mesh_gives_its_two_quads() -> None:
    weights = {pair: 1 for quad in (range(4), range(4, 8)) for pair in combinations(quad, 2)}
    weights |= {(gpu, gpu + 4): 2 for gpu in range(4)}
    assert tp_groups(list(range(8)), weights) == ((0, 1, 2, 3), (4, 5, 6, 7))


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, dict[Edge, int]]:
    count = draw(st.integers(2, 14))
    edges = draw(st.dictionaries(st.sampled_from(list(combinations(range(count), 2))), st.integers(1, 6), max_size=30))
    return count, edges


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_groups_are_disjoint_and_fully_joined(graph: tuple[int, dict[Edge, int]]) -> None:
    count, weights = graph

    groups = tp_groups(list(range(count)), weights)

    members = [gpu for group in groups for gpu in group]
    assert len(members) == len(set(members))
    assert all(len(group) in SIZES for group in groups)
    assert all(edge in weights for group in groups for edge in combinations(group, 2))
    # Nothing obvious is left over: two GPUs without a group are never joined.
    alone = sorted(set(range(count)) - set(members))
    assert not any(edge in weights for edge in combinations(alone, 2))
