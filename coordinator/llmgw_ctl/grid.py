"""Tables, the same content in two forms: rich on a terminal, plain aligned columns in a pipe.

In a pipe each row is one line and nothing is shortened. On a terminal names and ids are never shortened either; columns
marked ``fold`` (reasons, URLs) take the room that is left and go on in the next line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.table import Table

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
    title: str
    align: Literal["left", "right"] = "left"
    fold: bool = False


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

    def rich(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
        for column in self.columns:
            table.add_column(
                column.title,
                justify=column.align,
                overflow="fold",
                no_wrap=False,
                min_width=None if column.fold else self._widest(column),
                ratio=None,
            )
        for row in self.rows:
            table.add_row(*(Text(cell, style=self.styles.get(cell, "")) for cell in row))
        return table

    def _widest(self, column: Column) -> int:
        index = self.columns.index(column)
        return max(len(column.title), *(len(row[index]) for row in self.rows))


def _one_line(text: str) -> str:
    return " ".join(text.split())
