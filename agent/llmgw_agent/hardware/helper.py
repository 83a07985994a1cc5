"""Helper processes: where a driver call may hang without hanging the agent.

A helper prints JSON lines. Whoever runs it sets limits; a helper that passes them is killed, and when even SIGKILL does not
end it (a call stuck in the kernel) it is abandoned: its pipes are closed and nobody waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

logger = logging.getLogger(__name__)

_GRACE = 0.5
_LONGEST_LINE = 4 << 20


class HelperEndedError(Exception):
    """The helper ended or closed its output. The message has its exit code and the end of what it said on stderr."""


class HelperStalledError(Exception):
    """The helper said nothing for longer than allowed."""


def environment() -> dict[str, str]:
    """The helpers' environment: this interpreter's module path, so that they find what the agent found."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(each for each in sys.path if each), "PYTHONUNBUFFERED": "1"}


class Helper:
    """One running helper. Use :meth:`start`, then :meth:`line` until it raises, then always :meth:`close`."""

    def __init__(self, process: asyncio.subprocess.Process, name: str) -> None:
        self._process = process
        self._name = name

    @classmethod
    async def start(cls, module: str, args: Sequence[str] = ()) -> Helper:
        """Starts ``python -m module args``.

        Raises:
            OSError: the interpreter cannot be started.
        """
        starting = asyncio.ensure_future(cls._start(module, args))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            # Half a process would be left behind otherwise; a start takes milliseconds.
            with suppress(OSError):
                await (await starting).close()
            raise

    @classmethod
    async def _start(cls, module: str, args: Sequence[str]) -> Helper:
        process = await asyncio.create_subprocess_exec(
            # The module path comes by the environment: no scan of site packages (-S), which halves the start, and nothing from
            # the current folder (-P), which may be anyone's.
            sys.executable,
            "-S",
            "-P",
            "-m",
            module,
            *args,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment(),
            limit=_LONGEST_LINE,
            # A group of its own: an interrupt at the terminal is the agent's to handle.
            start_new_session=True,
        )
        return cls(process, module.rpartition(".")[2])

    @property
    def pid(self) -> int:
        return self._process.pid

    async def line(self, timeout: float) -> bytes:
        """The next line.

        Raises:
            HelperStalledError: nothing came within ``timeout`` seconds.
            HelperEndedError: there are no more lines.
        """
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(timeout):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise HelperStalledError(f"{self._name} said nothing for {timeout:.1f} s") from None
        except ValueError:
            raise HelperEndedError(f"{self._name} printed a line of more than {_LONGEST_LINE} bytes") from None
        if not line.endswith(b"\n"):
            raise HelperEndedError(await self._last_words())
        return line

    async def say(self, line: str) -> None:
        """Writes a line to the helper's standard input; a helper that is gone is no error here."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError, ConnectionResetError):
            self._process.stdin.write(line.encode() + b"\n")
            await self._process.stdin.drain()

    async def _last_words(self) -> str:
        assert self._process.stderr is not None
        said = b""
        with suppress(TimeoutError):
            async with asyncio.timeout(_GRACE):
                said = await self._process.stderr.read(4000)
                await self._process.wait()
        code = self._process.returncode
        how = (
            "closed its output"
            if code is None
            else f"was ended by signal {-code}"
            if code < 0
            else f"ended with exit code {code}"
        )
        words = said.decode(errors="replace").strip().splitlines()
        return f"{self._name} {how}" + (f": {words[-1]}" if words else "")

    async def close(self) -> None:
        """Ends the helper; returns within half a second even when the kernel will not let go of it."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()
            try:
                async with asyncio.timeout(_GRACE):
                    await self._process.wait()
            except TimeoutError:
                logger.warning("helper cannot be killed, leaving it", extra={"fields": {"helper": self._name, "pid": self.pid}})
        # The public API has no way to close the pipes of a process that will not die.
        transport: asyncio.SubprocessTransport = self._process._transport  # type: ignore[attr-defined]
        transport.close()
