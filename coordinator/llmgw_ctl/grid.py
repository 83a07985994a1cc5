"""Tables, the same content in two forms: rich on a terminal, plain aligned columns in a pipe.

In a pipe each row is one line, nothing is shortened and the columns are always the same. On a terminal names and ids are
never shortened either; columns marked ``fold`` (reasons, URLs) take the room that is left, go on in the next line, and are
left out when there is nothing in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from llmgw_ctl.printable import printable

if TYPE_CHECKING:
    from rich.table import Table

#: What stands in a cell that has no value.
NOTHING = "-"

#: A folded column narrower than this is hard to read.
_LEAST_FOLDED = 16

STATE_STYLES = {
    "Ready": "green",
    "Scaled to zero": "dim",
    "Pending": "yellow",
    "Progressing": "cyan",
    "Degraded": "yellow",
    "Suspect": "yellow",
    "Failed": "red",
    "Rejected": "red",
    "Removing": "dim",
    "Draining": "dim",
    "Stopped": "dim",
    "alive": "green",
    "gone": "red",
}


@dataclass(frozen=True, slots=True)
class Column:
    """``spare`` above 0: left out when the terminal is too narrow for all, the highest first."""

    title: str
    align: Literal["left", "right"] = "left"
    fold: bool = False
    spare: int = 0


@dataclass(frozen=True, slots=True)
class Grid:
    """Rows of text. ``empty`` is said instead of a table without rows."""

    columns: tuple[Column, ...]
    rows: Sequence[tuple[str, ...]]
    empty: str = ""
    styles: dict[str, str] = field(default_factory=lambda: STATE_STYLES)

    def plain(self) -> str:
        """Columns two blanks apart, a title line first."""
        lines = [tuple(column.title for column in self.columns), *(tuple(map(_one_line, row)) for row in self.rows)]
        widths = [max(len(line[index]) for line in lines) for index in range(len(self.columns))]
        return "".join(self._plain_line(line, widths) + "\n" for line in lines)

    def _plain_line(self, line: tuple[str, ...], widths: list[int]) -> str:
        cells = (
            text.rjust(width) if column.align == "right" else text.ljust(width)
            for text, width, column in zip(line, widths, self.columns, strict=True)
        )
        return "  ".join(cells).rstrip()

    def without(self, title: str) -> Grid:
        """The same table without one column."""
        kept = [index for index, column in enumerate(self.columns) if column.title != title]
        columns = tuple(self.columns[index] for index in kept)
        return replace(self, columns=columns, rows=[tuple(row[index] for index in kept) for row in self.rows])

    def fitting(self, width: int) -> Grid:
        """Without as many spare columns as must go, so that the rest fits on a terminal of this width."""
        grid = self
        while grid.least_width() > width:
            spare = max(grid.columns, key=lambda column: column.spare)
            if spare.spare == 0:
                break
            grid = grid.without(spare.title)
        return grid

    def rich(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        shown = self._shown()
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
        for index in shown:
            column = self.columns[index]
            table.add_column(
                column.title, justify=column.align, overflow="fold", no_wrap=not column.fold, min_width=self._least(index)
            )
        for row in self.rows:
            table.add_row(*(Text(printable(row[index]), style=self.styles.get(row[index], "")) for index in shown))
        return table

    def least_width(self) -> int:
        """Columns of a terminal below which :meth:`rich` would cut something off."""
        widths = [self._least(index) for index in self._shown()]
        return sum(widths) + 2 * (len(widths) - 1)

    def _shown(self) -> list[int]:
        return [index for index, column in enumerate(self.columns) if not (column.fold and self._empty(index))]

    def _empty(self, index: int) -> bool:
        return all(row[index] in ("", NOTHING) for row in self.rows)

    def _least(self, index: int) -> int:
        return min(self._widest(index), _LEAST_FOLDED) if self.columns[index].fold else self._widest(index)

    def _widest(self, index: int) -> int:
        return max([len(self.columns[index].title), *(len(row[index]) for row in self.rows)])


def _one_line(text: str) -> str:
    return printable(" ".join(text.split()), keep="")
