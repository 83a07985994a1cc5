"""How far a wish is, on stderr: a live line per model on a terminal, a line per change elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from llmgw_ctl.humanize import duration
from llmgw_ctl.printable import printable
from llmgw_ctl.terminal import Terminal
from llmgw_ctl.watch.verdict import Outcome, Verdict

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

MARKS = {Outcome.WAITING: ("…", "cyan"), Outcome.FULFILLED: ("✓", "green"), Outcome.HOPELESS: ("✗", "red")}


class Display(Protocol):
    def __enter__(self) -> Display: ...

    def __exit__(self, *_: object) -> None: ...

    def show(self, verdicts: dict[str, Verdict], elapsed: float) -> None: ...


class Lines:
    """For logs and pipes: prints a model's line when it differs from the last."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._shown: dict[str, Verdict] = {}

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def show(self, verdicts: dict[str, Verdict], elapsed: float) -> None:
        for name, verdict in verdicts.items():
            if self._shown.get(name) != verdict:
                self._shown[name] = verdict
                self._terminal.note(f"{duration(elapsed):>6}  {name}  {verdict.text}")


class LiveTable:
    """For people at a terminal."""

    def __init__(self, terminal: Terminal) -> None:
        from rich.live import Live

        self._live: Live = Live(console=terminal.err, refresh_per_second=8, transient=True)

    def __enter__(self) -> LiveTable:
        self._live.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.__exit__(None, None, None)

    def show(self, verdicts: dict[str, Verdict], elapsed: float) -> None:
        self._live.update(_table(verdicts, elapsed))


def _table(verdicts: dict[str, Verdict], elapsed: float) -> Table:
    from rich.spinner import Spinner
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    table.add_column(no_wrap=True, justify="right")
    for name, verdict in verdicts.items():
        mark, style = MARKS[verdict.outcome]
        waits = verdict.outcome is Outcome.WAITING
        # A new Spinner starts its dance anew at each update; its phase is taken from the clock instead.
        sign = Spinner("dots", style=style).render(elapsed) if waits else Text(mark, style)
        table.add_row(
            sign, Text(printable(name), "bold"), Text(printable(verdict.text)), Text(duration(elapsed) if waits else "", "dim")
        )
    return table


def display_for(terminal: Terminal) -> Display:
    return LiveTable(terminal) if terminal.err.is_terminal else Lines(terminal)
