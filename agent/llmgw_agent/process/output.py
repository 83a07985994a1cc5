"""Where an engine's output goes: a named pipe per attempt and the log writer behind it, see ``logmon.py``."""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path

from llmgw_agent.errors import AttemptError
from llmgw_agent.process import logmon
from llmgw_agent.process.end import send_signal
from llmgw_agent.process.identity import LOGMON, Identity
from llmgw_agent.process.spawn import clean_environment, spawn
from llmgw_agent.process.watch import Watch
from llmgw_base.clock import Clock

logger = logging.getLogger(__name__)


class Output:
    """The output of one attempt. Its methods are called from the event loop's thread."""

    def __init__(self, folder: Path, node: str, attempt: str, boot: str, *, max_bytes: int, files: int) -> None:
        self._folder, self._node, self._attempt, self._boot = folder, node, attempt, boot
        self._limits = [str(max_bytes), str(files)]
        self._pipe = folder / f"{attempt}.pipe"
        self._watch: Watch | None = None

    def open(self) -> int:
        """Makes the pipe, starts the writer and returns a descriptor for the engine's stdout; the caller closes it.

        Raises:
            AttemptError: the log folder cannot be written.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            os.mkfifo(self._pipe, 0o600)
            # Both ways: with a reader of its own the engine survives the writer, and opening does not wait for one.
            fd = os.open(self._pipe, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise AttemptError(
                f"log folder {self._folder}: {error.strerror}; free the disk or correct its permissions"
            ) from error
        self._start_writer()
        return fd

    def adopt(self, writer: Identity | None) -> None:
        """Takes over the output of an engine that runs already; starts a new writer where the old one is gone."""
        self._watch = Watch.open(writer) if writer is not None else None
        if self._watch is None and self._pipe.exists():
            self._start_writer()

    async def keep(self) -> None:
        """Replaces the writer whenever it dies before the engine does; cancel it when the engine has ended."""
        while self._watch is not None:
            await self._watch.wait()
            if not self._pipe.exists():
                return
            logger.warning("log writer died, starting another", extra={"fields": {"folder": str(self._folder)}})
            self._start_writer()

    async def finish(self, clock: Clock, limit: float = 2.0) -> None:
        """After the engine's end: waits until its last lines are written, then removes the pipe."""
        deadline = clock.monotonic() + limit
        while self._watch is not None and not self._watch.ended:
            if clock.monotonic() >= deadline:
                send_signal(self._watch.identity, signal.SIGKILL)
                await self._watch.wait()
                break
            await clock.sleep(0.02)
        self._pipe.unlink(missing_ok=True)

    def release(self) -> None:
        """Stops watching; engine and writer go on."""
        if self._watch is not None:
            self._watch.close()

    def _start_writer(self) -> None:
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        try:
            argv = [sys.executable, "-I", "-S", logmon.__file__, str(self._pipe), str(self._folder), *self._limits]
            environment = clean_environment(os.environ, {LOGMON: f"{self._node}/{self._attempt}"})
            self._watch = Watch.open(spawn(argv, environment, null, self._boot))
        finally:
            os.close(null)
