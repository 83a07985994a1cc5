"""How every daemon starts, runs and stops: signals, systemd, exit codes.

A program's ``main`` is ``return lifecycle.main("llmgw-agent", lambda stop, notifier: App(config).run(stop, notifier))``. The
body owns all its tasks, calls ``notifier.ready()`` once it serves, and returns after ``await stop.wait()`` when it has cleaned
up. A second signal ends the process at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine

from llmgw_base.config import ConfigError
from llmgw_base.etcd.errors import StoreError
from llmgw_base.notify import Notifier

OK = 0
FAILED = 1
USAGE = 2
UNREACHABLE = 3
NOT_FOUND = 4
UNFULFILLED = 5
INTERRUPTED = 130

logger = logging.getLogger(__name__)


class Stop:
    """The wish to stop, made once."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._reason = ""

    @property
    def requested(self) -> bool:
        return self._event.is_set()

    def request(self, reason: str) -> None:
        """The first reason counts."""
        if not self._event.is_set():
            self._reason = reason
            self._event.set()

    async def wait(self) -> str:
        """Returns the reason."""
        await self._event.wait()
        return self._reason


Body = Callable[[Stop, Notifier], Coroutine[None, None, None]]


def main(program: str, body: Body, *, loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None) -> int:
    """Runs the body to its end and returns the exit status; what the operator can mend is one line, never a traceback."""
    # gRPC's C core writes lines of its own to stderr about what llmgw handles and says better.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            return runner.run(_run(program, body))
    except KeyboardInterrupt:
        return INTERRUPTED


def fail(program: str, error: Exception) -> int:
    """Prints an error that the operator can mend and returns the exit status for its kind."""
    print(f"{program}: {error}", file=sys.stderr)  # noqa: T201 - the program's last words, before or without a log
    return USAGE if isinstance(error, ConfigError) else UNREACHABLE


def flatten(error: BaseException) -> list[BaseException]:
    """The leaves of an exception group; TaskGroup wraps even a single error."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for each in error.exceptions for leaf in flatten(each)]
    return [error]


async def _run(program: str, body: Body) -> int:
    stop = Stop()
    notifier = Notifier()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, stop, number)
    watchdog = asyncio.create_task(_watchdog(notifier), name="watchdog")
    try:
        await body(stop, notifier)
    except BaseException as error:
        causes = flatten(error)
        told = [cause for cause in causes if isinstance(cause, ConfigError | StoreError)]
        if not told or len(told) != len(causes):
            raise
        return fail(program, told[0])
    finally:
        notifier.stopping()
        watchdog.cancel()
        await asyncio.gather(watchdog, return_exceptions=True)
    return OK


def _on_signal(stop: Stop, number: signal.Signals) -> None:
    if stop.requested:
        logger.warning("second signal, ending at once", extra={"fields": {"signal": number.name}})
        os._exit(128 + number)
    stop.request(number.name)


async def _watchdog(notifier: Notifier) -> None:
    if notifier.watchdog_interval is None:
        return
    while True:
        notifier.alive()
        await asyncio.sleep(notifier.watchdog_interval)
