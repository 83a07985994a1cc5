"""The running stack: starts the stages, keeps the children, stops them in order."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from pathlib import Path

import psutil
import yaml

from llmgw_base.clock import Clock
from llmgw_ctl.errors import CtlError, StackError
from llmgw_ctl.running import RunningStack, announce, start_time
from llmgw_ctl.up.board import Board
from llmgw_ctl.up.layout import Layout
from llmgw_ctl.up.plan import AGENT, COORDINATOR, ETCD, ROUTER, START_STAGES, STOP_ORDER, Choices, local_url, plan
from llmgw_ctl.up.probes import Probes
from llmgw_ctl.up.process import Reaper
from llmgw_ctl.up.tasks import all_of
from llmgw_ctl.up.worker import Worker

_STARTING = {ETCD: "starting the store", COORDINATOR: "starting", ROUTER: "starting", AGENT: "looking at this machine"}
_ORPHAN_SECONDS = 5.0


def child_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Without what would change the children behind our back (etcd reads ETCD_* as options), and without our own secrets."""
    ours = ("LLMGW_SERVER", "LLMGW_TOKEN", "LLMGW_TOKEN_FILE")
    kept = {key: value for key, value in environ.items() if not key.startswith("ETCD_") and key not in ours}
    return kept | {"PYTHONUNBUFFERED": "1"}


class Stack:
    """Owns the workers and their tasks."""

    def __init__(
        self,
        layout: Layout,
        choices: Choices,
        *,
        reaper: Reaper,
        probes: Probes,
        board: Board,
        clock: Clock,
        environ: Mapping[str, str],
    ) -> None:
        self._layout = layout
        self._choices = choices
        self._board = board
        self._clock = clock
        self._environ = environ
        self._announced: Path | None = None
        self._plans = plan(layout, choices)
        probe = {ETCD: probes.etcd, COORDINATOR: probes.coordinator, ROUTER: probes.router, AGENT: probes.agent}
        self._workers = {
            name: Worker(each, probe[name], reaper, environ=child_environment(environ), clock=clock, tell=board.note)
            for name, each in self._plans.items()
        }
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._forced = False

    async def start(self, versions: Mapping[str, str]) -> None:
        """Returns when every child is ready. ``versions`` is shown with the names.

        Raises:
            StackError: a child does not come up.
        """
        for each in self._plans.values():
            if each.config_path is not None:
                each.config_path.write_text(yaml.safe_dump(each.config, sort_keys=False))
        for stage in START_STAGES:
            for name in stage:
                self._board.begin(name, _STARTING[name])
                self._tasks[name] = asyncio.create_task(self._workers[name].run(), name=f"child {name}")
            await all_of(*(self._ready(name, versions.get(name, "")) for name in stage))
        self._announce()

    async def _ready(self, name: str, version: str) -> None:
        try:
            await self._workers[name].ready()
        except CtlError:
            self._board.failed(name, "did not come up")
            raise
        self._board.done(name, f"{version} ready".lstrip())

    async def ended(self) -> None:
        """Waits for a child that cannot be kept running.

        Raises:
            StackError: always, when there is one.
        """
        done, _ = await asyncio.wait(self._tasks.values(), return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        names = [name for name, task in self._tasks.items() if task in done]
        raise StackError(f"{', '.join(names)} cannot be started again", f"see {self._layout.logs}")

    async def stop(self) -> None:
        """Stops what runs in the right order and returns when no process is left."""
        if self._announced is not None:
            self._announced.unlink(missing_ok=True)
        self._layout.admin.unlink(missing_ok=True)
        self._board.pause()
        for name in STOP_ORDER:
            if name not in self._tasks:
                continue
            self._board.begin(name, "stopping, with its engines" if name == AGENT else "stopping")
            await self._workers[name].stop()
            await self._tasks[name]
            self._board.done(name, "stopped")
        await self._clear_orphans()

    def force(self) -> None:
        """Kills every process below this one at once."""
        self._forced = True
        for worker in self._workers.values():
            worker.kill()
        for process in _descendants():
            _signal(process, signal.SIGKILL)

    @property
    def forced(self) -> bool:
        return self._forced

    async def _clear_orphans(self) -> None:
        """Engines whose agent was killed are our children by now; a stopped stack leaves none of them."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            until = self._clock.monotonic() + _ORPHAN_SECONDS
            orphans = _descendants()
            for process in orphans:
                _signal(process, number)
            while _descendants() and self._clock.monotonic() < until:
                await self._clock.sleep(0.05)

    def _announce(self) -> None:
        pid = os.getpid()
        stack = RunningStack(
            local_url(self._choices.admin),
            self._layout.token,
            local_url(self._choices.router),
            self._layout.root,
            pid,
            start_time(pid) or 0,
        )
        self._layout.admin.write_text(stack.to_json() + "\n")
        self._announced = announce(stack, self._environ)


def _descendants() -> list[psutil.Process]:
    try:
        return [each for each in psutil.Process().children(recursive=True) if each.status() != psutil.STATUS_ZOMBIE]
    except psutil.NoSuchProcess:
        return []


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return
