"""What every command works with: where to write, in which form, and how to reach the coordinator."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from llmgw_base.clock import Clock, SystemClock
from llmgw_ctl.grid import Grid
from llmgw_ctl.output import Format
from llmgw_ctl.terminal import Terminal

if TYPE_CHECKING:
    from llmgw_ctl.client import AdminClient
    from llmgw_ctl.connection import Target

T = TypeVar("T")


class Session:
    """One command's run. What a command was not told, the options before it (``llmgwctl --server URL status``) say."""

    def __init__(
        self,
        ctx: typer.Context | None = None,
        *,
        server: str | None = None,
        token_file: Path | None = None,
        output: Format | None = None,
        environ: Mapping[str, str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        before: dict[str, Any] = ctx.find_root().params if ctx is not None else {}
        self._server = server or before.get("server")
        self._token_file = token_file or before.get("token_file")
        self.format: Format = output or before.get("output") or Format.TABLE
        self.environ = os.environ if environ is None else environ
        self.clock = clock or SystemClock()
        self.terminal = Terminal()

    @property
    def for_people(self) -> bool:
        return self.format is Format.TABLE

    def target(self) -> Target:
        from llmgw_ctl.connection import resolve

        return resolve(self._server, self._token_file, self.environ)

    def call(self, work: Callable[[AdminClient], Coroutine[Any, Any, T]]) -> T:
        """Runs ``work`` with a client of the coordinator."""
        from llmgw_ctl.client import AdminClient

        async def run() -> T:
            async with AdminClient(self.target()) as client:
                return await work(client)

        return asyncio.run(run())

    def data(self, value: Any) -> None:
        self.terminal.data(value, as_yaml=self.format is Format.YAML)

    def grid_or_data(self, value: Any, grid: Callable[[], Grid]) -> None:
        """The value itself for programs, the table for people."""
        if self.for_people:
            self.terminal.grid(grid())
        else:
            self.data(value)
