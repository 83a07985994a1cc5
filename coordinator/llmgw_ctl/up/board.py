"""Tells how the start and the stop go: steps that spin and then stay as one line each, and notes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmgw_base.clock import Clock
from llmgw_ctl.humanize import duration
from llmgw_ctl.printable import printable
from llmgw_ctl.terminal import Terminal
from llmgw_ctl.watch.verdict import Verdict

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table


class Board:
    """On a terminal the open steps move; elsewhere each step is a line when it is done. ``quiet`` leaves both out."""

    def __init__(self, terminal: Terminal, clock: Clock, *, quiet: bool = False) -> None:
        self._terminal = terminal
        self._clock = clock
        self._quiet = quiet
        self._open: dict[str, tuple[str, float]] = {}
        self._live: Live | None = None

    def begin(self, name: str, text: str) -> None:
        self._open[name] = (text, self._clock.monotonic())
        self._refresh()

    def update(self, name: str, text: str) -> None:
        if name in self._open:
            self._open[name] = (text, self._open[name][1])
            self._refresh()

    def done(self, name: str, text: str) -> None:
        self._close(name, "✓", "green", text)

    def failed(self, name: str, text: str) -> None:
        self._close(name, "✗", "red", text)

    def note(self, text: str) -> None:
        """Something that happened to the running stack."""
        if not self._quiet:
            self._terminal.note(f"  {text}", style="yellow")

    def warn(self, text: str) -> None:
        """Said even when quiet."""
        self._terminal.warn(text)

    def pause(self) -> None:
        """Takes the moving part off the screen, before something else writes there."""
        self._open.clear()
        self._refresh()

    def _close(self, name: str, mark: str, style: str, text: str) -> None:
        _, started = self._open.pop(name, ("", self._clock.monotonic()))
        if not self._quiet:
            from rich.text import Text

            spent = duration(self._clock.monotonic() - started)
            line = Text.assemble((mark, style), " ", (f"{name:<12}", "bold"), f" {text} ", (f"({spent})", "dim"))
            self._terminal.err.print(line, soft_wrap=True)
        self._refresh()

    def _refresh(self) -> None:
        if self._quiet or not self._terminal.err.is_terminal:
            return
        from rich.live import Live

        if self._open and self._live is None:
            self._live = Live(console=self._terminal.err, get_renderable=self._table, refresh_per_second=10, transient=True)
            self._live.start()
        elif not self._open and self._live is not None:
            self._live.stop()
            self._live = None

    def _table(self) -> Table:
        from rich.spinner import Spinner
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, show_header=False, padding=(0, 1, 0, 0), pad_edge=False)
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True, min_width=12)
        table.add_column(overflow="fold")
        now = self._clock.monotonic()
        for name, (text, started) in list(self._open.items()):
            line = Text.assemble(printable(text), "  ", (duration(now - started), "dim"))
            table.add_row(Spinner("dots", style="cyan").render(now), Text(name, "bold"), line)
        return table


class ModelSteps:
    """Shows a wait for models as steps of the board."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def __enter__(self) -> ModelSteps:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def show(self, verdicts: dict[str, Verdict], elapsed: float) -> None:
        for name, verdict in verdicts.items():
            self._board.update(name, verdict.text)
