"""Children of this process: spawned into sessions of their own, reaped in one place.

``up`` is a child subreaper: what its children leave behind (engines of an agent that was killed) becomes its own child. So
the reaper collects every child that ends, its own and such orphans; otherwise an engine that dies would stay a zombie, which
the agent that adopted it would take for alive.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

_PR_SET_CHILD_SUBREAPER = 36


def become_subreaper(wanted: bool = True) -> bool:
    """Whether the kernel agreed; without it orphans go to init, and nothing else changes. ``wanted`` False undoes it."""
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.prctl(_PR_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0) == 0)


class Process:
    """A running child. ``wait`` gives the exit status, negative for a signal."""

    def __init__(self, popen: subprocess.Popen[bytes], loop: asyncio.AbstractEventLoop) -> None:
        self.popen = popen
        self._exited: asyncio.Future[int] = loop.create_future()

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def alive(self) -> bool:
        return not self._exited.done()

    async def wait(self) -> int:
        return await asyncio.shield(self._exited)

    def signal(self, number: signal.Signals) -> None:
        """Signals a child that was not reaped yet, so the pid cannot be another's."""
        if self.alive:
            os.kill(self.pid, number)

    def reaped(self, status: int) -> None:
        if not self._exited.done():
            self._exited.set_result(status)


class Reaper:
    """Use as a context manager in the main thread's loop; takes SIGCHLD for itself."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._known: dict[int, Process] = {}

    def __enter__(self) -> Self:
        self._loop.add_signal_handler(signal.SIGCHLD, self.collect)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._loop.remove_signal_handler(signal.SIGCHLD)

    def spawn(self, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], log: Path) -> Process:
        """Starts a program with its output appended to ``log``. Raises OSError when it cannot be run."""
        with log.open("ab") as output:
            popen = subprocess.Popen(
                argv,
                cwd=cwd,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        process = Process(popen, self._loop)
        self._known[popen.pid] = process
        self.collect()  # it may have ended before it was known
        return process

    def collect(self) -> None:
        """Reaps all children that ended."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            process = self._known.pop(ended.si_pid, None)
            if process is None:
                os.waitpid(ended.si_pid, 0)
            else:
                process.reaped(process.popen.wait())
