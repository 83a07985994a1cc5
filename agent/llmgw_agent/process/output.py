"""Where an engine's output goes: a named pipe per attempt and the log writer behind it, see ``logmon.py``."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from pathlib import Path

from llmgw_agent.errors import AgentError, AttemptError
from llmgw_agent.process import logmon
from llmgw_agent.process.end import send_signal
from llmgw_agent.process.identity import LOGMON, Identity, Owner
from llmgw_agent.process.isolation import InGroups, Isolation, WriterOrder
from llmgw_agent.process.spawn import clean_environment
from llmgw_agent.process.watch import Watch
from llmgw_base.clock import Clock

#: Seconds between two starts of a writer, should none live.
WRITER_PAUSE = 1.0
logger = logging.getLogger(__name__)


class Output:
    """The output of one attempt. Its methods are called from the event loop's thread."""

    def __init__(
        self,
        folder: Path,
        owner: Owner,
        attempt: str,
        boot: str,
        *,
        max_bytes: int,
        files: int,
        isolation: Isolation | None = None,
    ) -> None:
        """``isolation``: how the writer is kept apart from the agent; None: by a session of its own."""
        self._folder, self._owner, self._attempt, self._boot = folder, owner, attempt, boot
        self._limits = [str(max_bytes), str(files)]
        self._isolation = isolation or InGroups()
        self.pipe = folder / f"{attempt}.pipe"
        self._watch: Watch | None = None

    async def open(self) -> int:
        """Makes the pipe, starts the writer and returns a descriptor for the engine's stdout; the caller closes it.

        Raises:
            AttemptError: the log folder cannot be written, or the writer cannot be started.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            os.mkfifo(self.pipe, 0o600)
            # Both ways: with a reader of its own the engine survives the writer, and opening does not wait for one.
            fd = os.open(self.pipe, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise AttemptError(
                f"log folder {self._folder}: {error.strerror}; free the disk or correct its permissions"
            ) from error
        try:
            await self._start_writer()
        except BaseException:
            os.close(fd)
            with contextlib.suppress(OSError):
                self.pipe.unlink(missing_ok=True)
            raise
        return fd

    async def adopt(self, writer: Identity | None) -> None:
        """Takes over the output of an engine that runs already; starts a new writer where the old one is gone."""
        self._watch = Watch.open(writer) if writer is not None else None
        if self._watch is None and self.pipe.exists():
            await self._replace_writer()

    async def keep(self) -> None:
        """Replaces the writer whenever it dies before the engine does; cancel it when the engine has ended."""
        while True:
            if self._watch is not None:
                await self._watch.wait()
            if not self.pipe.exists():
                return
            logger.warning("log writer died, starting another", extra={"fields": {"folder": str(self._folder)}})
            await self._replace_writer()
            await asyncio.sleep(WRITER_PAUSE)

    async def _replace_writer(self) -> None:
        """If it can be done now. An engine that runs is not given up for its log."""
        try:
            await self._start_writer()
        except AgentError as error:
            self._watch = None
            fields = {"folder": str(self._folder), "cause": str(error)}
            logger.warning("no log writer can be started; it is tried again", extra={"fields": fields})

    async def finish(self, clock: Clock, limit: float = 2.0) -> None:
        """After the engine's end: waits until its last lines are written, then removes the pipe."""
        deadline = clock.monotonic() + limit
        while self._watch is not None and not self._watch.ended:
            if clock.monotonic() >= deadline:
                send_signal(self._watch.identity, signal.SIGKILL)
                await self._watch.wait()
                break
            await clock.sleep(0.02)
        self.pipe.unlink(missing_ok=True)

    def release(self) -> None:
        """Stops watching; engine and writer go on."""
        if self._watch is not None:
            self._watch.close()

    async def _start_writer(self) -> None:
        argv = [sys.executable, "-I", "-S", logmon.__file__, str(self.pipe), str(self._folder), *self._limits]
        environment = clean_environment(os.environ, {LOGMON: f"{self._owner.node}/{self._attempt}"})
        order = WriterOrder(self._owner, self._attempt, argv, environment, self._boot)
        self._watch = Watch.open(await self._isolation.start_writer(order))
