"""The two ends of the terminal: data goes to stdout, everything else to stderr.

Colours and movement are left out when the stream is not a terminal, or NO_COLOR is set (rich sees to both).
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from llmgw_ctl.errors import CtlError
from llmgw_ctl.printable import printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from llmgw_ctl.grid import Grid

#: Columns of what is drawn when stdout is not a terminal.
PIPE_WIDTH = 220


class Terminal:
    """Where a command writes to."""

    def __init__(self) -> None:
        from rich.console import Console

        self.out: Console = Console(highlight=False, markup=False, emoji=False)
        self.err: Console = Console(highlight=False, markup=False, emoji=False, stderr=True)

    def line(self, text: str = "", style: str | None = None) -> None:
        """One line of a command's answer, on stdout."""
        self.out.print(printable(text), style=style, soft_wrap=True)

    def note(self, text: str = "", style: str | None = None) -> None:
        """A remark for people, on stderr; on a terminal it is broken between words."""
        self.err.print(printable(text), style=style, soft_wrap=not self.err.is_terminal)

    def warn(self, text: str) -> None:
        self._marked("warning:", "yellow", text)

    def data(self, value: Any, *, as_yaml: bool) -> None:
        """Pure data on stdout: one JSON value or one YAML document."""
        if as_yaml:
            import yaml

            sys.stdout.write(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=120))
        else:
            sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
        sys.stdout.flush()

    def grid(self, grid: Grid) -> None:
        """A table on stdout; when it has no rows, what to do next on stderr."""
        if not grid.rows:
            self.note(grid.empty)
            return
        if self.out.is_terminal:
            grid = grid.fitting(self.out.width)
            if grid.least_width() <= self.out.width:
                self.out.print(grid.rich())
                return
        sys.stdout.write(grid.plain())

    def show(self, part: RenderableType) -> None:
        """Anything that rich draws, on stdout; in a pipe it has room, so that hardly a line is broken."""
        self.out.print(part, width=None if self.out.is_terminal else PIPE_WIDTH)

    def error(self, error: CtlError) -> None:
        self._marked("error:", "bold red", error.message)
        if error.remedy:
            self._marked("remedy:", "bold", error.remedy)

    def _marked(self, mark: str, style: str, text: str) -> None:
        from rich.text import Text

        self.err.print(Text.assemble((mark, style), " ", printable(text)), soft_wrap=not self.err.is_terminal)
