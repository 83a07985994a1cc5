"""Keeps one child running, following :mod:`llmgw_ctl.up.machine`."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from llmgw_base.clock import Clock
from llmgw_ctl.errors import StackError
from llmgw_ctl.humanize import duration
from llmgw_ctl.running import start_time
from llmgw_ctl.up.machine import Life, State
from llmgw_ctl.up.plan import ChildPlan
from llmgw_ctl.up.process import Process, Reaper
from llmgw_ctl.up.tasks import give_up

READY_SECONDS = 60.0
PROBE_SECONDS = 0.05
_LOG_BYTES = 8 * 2**20
_TAIL_LINES = 8

Probe = Callable[[], Awaitable[bool]]
Tell = Callable[[str], None]


class Worker:
    """Owns one child. ``run`` is its task: it ends after ``stop``, or when the child never became ready."""

    def __init__(
        self, plan: ChildPlan, probe: Probe, reaper: Reaper, *, environ: Mapping[str, str], clock: Clock, tell: Tell
    ) -> None:
        self.plan = plan
        self.life = Life(plan.name)
        self._probe = probe
        self._reaper = reaper
        self._environ = environ
        self._clock = clock
        self._tell = tell
        self._process: Process | None = None
        self._log_start = 0
        self._stopping = asyncio.Event()
        self._ready: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    async def ready(self) -> float:
        """Returns how long the first start took, in seconds.

        Raises:
            StackError: the child ended or did not answer in time.
        """
        return await asyncio.shield(self._ready)

    async def run(self) -> None:
        while not self._stopping.is_set():
            if not await self._live_once():
                return
            if await self._stopped_within(self.life.pause):
                return

    async def stop(self) -> None:
        """SIGTERM, and SIGKILL when the child is still there after its grace; returns when it is gone."""
        self._stopping.set()
        self.life.stop()
        process = self._process
        if process is not None:
            process.signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(self.plan.grace):
                    await process.wait()
            except TimeoutError:
                self._tell(f"{self.plan.name} did not stop within {duration(self.plan.grace)} and is killed")
                process.signal(signal.SIGKILL)
                await process.wait()
        if self.life.state is State.STOPPING:
            self.life.exited(self._clock.monotonic())
        self.plan.pid_file.unlink(missing_ok=True)
        if not self._ready.done():
            self._ready.cancel()

    def kill(self) -> None:
        """At once; for the second Ctrl-C."""
        self._stopping.set()
        if self._process is not None:
            self._process.signal(signal.SIGKILL)

    async def _live_once(self) -> bool:
        """One run of the child. Returns whether to start it again."""
        process = self._spawn()
        if process is None:
            return False
        exited = asyncio.create_task(process.wait())
        probing = asyncio.create_task(self._until_ready())
        try:
            await asyncio.wait({exited, probing}, return_when=asyncio.FIRST_COMPLETED)
            if probing.done() and not exited.done():
                probing.result()
            status = await exited
        except TimeoutError:
            return self._broken(f"{self.plan.name} does not answer after {duration(READY_SECONDS)}")
        finally:
            await give_up(exited, probing)
        return self._ended(status)

    def _spawn(self) -> Process | None:
        self._log_start = _rotated_size(self.plan.log)
        try:
            process = self._reaper.spawn(self.plan.argv, cwd=self.plan.cwd, env=self._environ, log=self.plan.log)
        except OSError as error:
            self._broken(f"{self.plan.argv[0]} cannot be run: {error.strerror}")
            return None
        self._process = process
        self.life.spawned()
        self.plan.pid_file.write_text(json.dumps({"pid": process.pid, "started": start_time(process.pid)}))
        return process

    async def _until_ready(self) -> None:
        started = self._clock.monotonic()
        while not await self._probe():
            if not self.life.was_ready and self._clock.monotonic() - started > READY_SECONDS:
                raise TimeoutError
            await self._clock.sleep(PROBE_SECONDS)
        if self._stopping.is_set():
            return
        again = self.life.was_ready
        now = self._clock.monotonic()
        self.life.ready(now)
        if again:
            self._tell(f"{self.plan.name} is back after {duration(now - started)}")
        elif not self._ready.done():
            self._ready.set_result(now - started)

    def _ended(self, status: int) -> bool:
        if self._stopping.is_set():
            return False
        self.life.exited(self._clock.monotonic())
        how = f"was killed by signal {-status}" if status < 0 else f"exited with status {status}"
        if self.life.state is State.BROKEN:
            return self._broken(f"{self.plan.name} {how}")
        self._tell(f"{self.plan.name} {how}; it is started again in {duration(self.life.pause)} (log: {self.plan.log})")
        return True

    def _broken(self, message: str) -> bool:
        words = last_words(self.plan.log, self._log_start)
        said = f"; it said:\n{words}" if words else ""
        if not self._ready.done():
            self._ready.set_exception(StackError(f"{message}{said}", f"see {self.plan.log}"))
        return False

    async def _stopped_within(self, seconds: float) -> bool:
        waiting = asyncio.create_task(self._stopping.wait())
        pause = asyncio.create_task(self._clock.sleep(seconds))
        await asyncio.wait({waiting, pause}, return_when=asyncio.FIRST_COMPLETED)
        await give_up(waiting, pause)
        return self._stopping.is_set()


def last_words(log: Path, start: int = 0) -> str:
    """The last lines that a log has after ``start`` bytes, indented."""
    try:
        lines = log.read_bytes()[start:].decode(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(f"  {line}" for line in lines[-_TAIL_LINES:] if line.strip())


def _rotated_size(log: Path) -> int:
    """The size of the log in bytes. One older file is kept, so that logs do not grow for ever over many starts."""
    try:
        size = log.stat().st_size
    except FileNotFoundError:
        return 0
    if size <= _LOG_BYTES:
        return size
    log.replace(log.with_suffix(".log.1"))
    return 0
