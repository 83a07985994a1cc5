"""Tables: plain in a pipe, folded on a terminal, ids whole in both."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from llmgw_ctl.grid import Column, Grid

LONG_ID = "a-model-with-quite-a-long-name-x7k2p"


def rendered(grid: Grid, width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=True, color_system=None).print(grid.rich())
    return out.getvalue()


def test_in_a_pipe_each_row_is_one_aligned_line() -> None:
    grid = Grid(
        (Column("ID"), Column("N", "right"), Column("REASON", fold=True)), [("a", "10", "two\nlines"), (LONG_ID, "2", "-")]
    )
    assert grid.plain() == (f"ID{' ' * 34}   N  REASON\na{' ' * 35}  10  two lines\n{LONG_ID}   2  -\n")


@pytest.mark.parametrize("width", [80, 140])
def test_on_a_terminal_reasons_fold_and_ids_stay_whole(width: int) -> None:
    reason = "no node has 40.0 GiB of memory free; the largest has 12.3 GiB; lower memory: or add a node"
    text = rendered(Grid((Column("ID"), Column("STATE"), Column("REASON", fold=True)), [(LONG_ID, "Pending", reason)]), width)
    assert LONG_ID in text
    assert "…" not in text
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    assert "".join(text.split()).endswith("addanode")


@given(st.lists(st.tuples(st.text(max_size=30), st.text(max_size=30)), min_size=1, max_size=5))
def test_plain_rows_are_as_many_as_given_whatever_they_hold(rows: list[tuple[str, str]]) -> None:
    assert len(Grid((Column("A"), Column("B")), rows).plain().split("\n")) == len(rows) + 2


@pytest.mark.parametrize("terminal", [False, True])
def test_control_characters_from_elsewhere_do_not_reach_the_terminal(terminal: bool) -> None:
    grid = Grid((Column("ID"), Column("REASON", fold=True)), [("a", "\x1b[2Jgone \x07\x9b31m")])
    text = rendered(grid, 80) if terminal else grid.plain()
    assert not set(text) & {"\x1b", "\x07", "\x9b"}
    assert "\\x1b[2Jgone" in text


def test_a_folded_column_with_nothing_in_it_is_left_out_on_a_terminal_only() -> None:
    grid = Grid((Column("ID"), Column("N"), Column("REASON", fold=True)), [("a", "-", "-"), ("b", "-", "")])
    assert "REASON" not in rendered(grid, 80)
    assert "N" in rendered(grid, 80)
    assert "REASON" in grid.plain()


def test_a_terminal_too_narrow_for_the_table_is_known() -> None:
    grid = Grid((Column("ID"), Column("REASON", fold=True)), [(LONG_ID, "x" * 100)])
    assert grid.least_width() == len(LONG_ID) + 2 + 16
    assert LONG_ID in rendered(grid, grid.least_width())


def test_a_column_can_be_left_out() -> None:
    grid = Grid((Column("A"), Column("B"), Column("C")), [("1", "2", "3")])
    assert grid.without("B").plain() == "A  C\n1  3\n"


def test_spare_columns_go_one_by_one_until_the_rest_fits() -> None:
    grid = Grid((Column("A"), Column("B", spare=1), Column("C", spare=2)), [("a" * 10, "b" * 10, "c" * 10)])
    assert [column.title for column in grid.fitting(80).columns] == ["A", "B", "C"]
    assert [column.title for column in grid.fitting(30).columns] == ["A", "B"]
    assert [column.title for column in grid.fitting(15).columns] == ["A"]
    assert [column.title for column in grid.fitting(3).columns] == ["A"]
