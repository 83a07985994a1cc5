"""Several workers on one port: starts them, restarts a dead or silent one, passes signals on, and stops them together.

Workers are processes of their own that listen with SO_REUSEPORT; the kernel spreads connections over them. The supervisor
holds the port (bound, never listening), so that it stays the same while workers come and go. A worker is alive when it
answers on its socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from llmgw_base import lifecycle, net
from llmgw_base.clock import Clock
from llmgw_base.config import ConfigError
from llmgw_base.lifecycle import Stop
from llmgw_base.notify import Notifier
from llmgw_router.account.workers import ask
from llmgw_router.app import announce
from llmgw_router.config import RouterConfig
from llmgw_router.role import Role

logger = logging.getLogger(__name__)

_CHECK_SECONDS = 2.0
_MISSED = 5
_BACKOFF = (0.1, 0.5, 1.0, 2.0, 5.0)
_STEADY_SECONDS = 30.0
_START_SECONDS = 60.0


class Supervisor:
    def __init__(self, config: RouterConfig, clock: Clock, count: int, arguments: Sequence[str]) -> None:
        self._config = config
        self._clock = clock
        self._count = count
        self._arguments = list(arguments)
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._life, self._held_open = os.pipe()

    async def run(self, stop: Stop, notifier: Notifier) -> None:
        listen = net.parse_listen(self._config.listen)
        with self._reserve(listen) as holder, tempfile.TemporaryDirectory(prefix="llmgw-router-") as folder:
            port = holder.getsockname()[1]
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._pass_on, signal.SIGHUP)
            async with asyncio.TaskGroup() as group:
                keepers = [group.create_task(self._keep(index, port, Path(folder), stop)) for index in range(self._count)]
                ready = group.create_task(self._announce_when_ready(Path(folder), listen, port, notifier))
                await stop.wait()
                ready.cancel()
                self._pass_on(signal.SIGTERM)
                await asyncio.gather(*keepers)

    def _reserve(self, listen: net.Listen) -> socket.socket:
        """Binds the port without listening; only sockets that listen get connections."""
        if listen.port:
            # A socket without SO_REUSEPORT finds out whether a stranger holds the port.
            net.bind(listen, backlog=1).close()
        holder = socket.socket(socket.AF_INET6 if ":" in listen.host else socket.AF_INET, socket.SOCK_STREAM)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            holder.bind((listen.host, listen.port))
        except OSError as error:
            holder.close()
            raise ConfigError(f"listen: cannot listen on {listen}: {error.strerror}") from error
        return holder

    def _pass_on(self, number: signal.Signals) -> None:
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)

    async def _keep(self, index: int, port: int, folder: Path, stop: Stop) -> None:
        """Keeps one worker running."""
        failures = 0
        while True:
            started = self._clock.monotonic()
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "llmgw_router",
                *self._arguments,
                env=os.environ | Role(index, port, self._life, folder).environment(),
                pass_fds=[self._life],
            )
            self._processes[index] = process
            if stop.requested:
                process.terminate()
            watching = asyncio.create_task(self._watch(process, folder / f"{index}.sock"))
            try:
                status = await process.wait()
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
                self._processes.pop(index, None)
            if stop.requested:
                return
            if status == lifecycle.USAGE:
                raise ConfigError("a worker could not use the configuration; its own message is above")
            steady = self._clock.monotonic() - started > _STEADY_SECONDS
            delay = _BACKOFF[min(0 if steady else failures, len(_BACKOFF) - 1)]
            failures = 0 if steady else failures + 1
            logger.error("worker died", extra={"fields": {"worker": index, "status": status, "restart_in_seconds": delay}})
            (folder / f"{index}.sock").unlink(missing_ok=True)
            if await _stops_within(stop, delay):
                return

    async def _watch(self, process: asyncio.subprocess.Process, path: Path) -> None:
        """Kills a worker that stops answering, so that it gets restarted."""
        missed = 0
        answered = False
        started = self._clock.monotonic()
        while True:
            await self._clock.sleep(_CHECK_SECONDS)
            if await ask(path):
                answered = True
                missed = 0
                continue
            if missed == 0 and not answered and self._clock.monotonic() - started < _START_SECONDS:
                continue
            missed += 1
            if missed >= _MISSED:
                logger.error("worker does not answer and is killed", extra={"fields": {"pid": process.pid}})
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                return

    async def _announce_when_ready(self, folder: Path, listen: net.Listen, port: int, notifier: Notifier) -> None:
        paths = [folder / f"{index}.sock" for index in range(self._count)]
        while not all([await ask(each) for each in paths]):
            await self._clock.sleep(0.05)
        notifier.ready()
        scheme = "https" if self._config.tls is not None else "http"
        announce(self._config, f"{scheme}://{net.Listen(listen.host, port)}", len(self._config.endpoints))


async def _stops_within(stop: Stop, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return False
    return True
