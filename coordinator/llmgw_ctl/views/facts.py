"""Names and values, one pair a line."""

from __future__ import annotations

from collections.abc import Sequence

from llmgw_ctl.grid import STATE_STYLES
from llmgw_ctl.printable import printable
from llmgw_ctl.terminal import Terminal


def print_facts(terminal: Terminal, facts: Sequence[tuple[str, str]]) -> None:
    """Values that are too long for the terminal go on below themselves; in a pipe each stays on its line."""
    width = max((len(name) for name, _ in facts), default=0)
    if not terminal.out.is_terminal:
        for name, value in facts:
            terminal.line(f"{name + ':':<{width + 1}}  {' '.join(value.split())}")
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True, min_width=width + 1)
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(Text(f"{name}:", "bold"), Text(printable(value), STATE_STYLES.get(value, "")))
    terminal.out.print(table)
