"""Runs the programs of infiniband-diags, each with a deadline."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from llmgw_agent.hardware.fabric.errors import ToolFailedError, ToolHungError, ToolMissingError


@dataclass(frozen=True)
class Output:
    """Exit codes of these tools mean little: some answer 0 with half a map, others 1 because they found errors."""

    code: int
    out: str
    err: str


class Tools:
    """``hca`` and ``port`` choose where to look from (a RoCE port cannot); ``env`` is added to the environment."""

    def __init__(self, hca: str | None = None, port: int | None = None, env: Mapping[str, str] | None = None) -> None:
        self._where = ["-C", hca, "-P", str(port or 1)] if hca is not None else []
        self._env = os.environ | {"LC_ALL": "C"} | dict(env or {})

    async def run(self, program: str, args: Sequence[str], deadline: float) -> Output:
        """Runs one program.

        Raises:
            ToolMissingError: it is not installed.
            ToolHungError: it did not end within ``deadline`` seconds.
        """
        # An own folder: the tools leave files where they run.
        with tempfile.TemporaryDirectory(prefix="llmgw-fabric-") as folder:
            try:
                process = await asyncio.create_subprocess_exec(
                    program,
                    *self._where,
                    *args,
                    cwd=folder,
                    env=self._env,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    start_new_session=True,
                )
            except FileNotFoundError:
                raise ToolMissingError(f"{program} is not installed: install the package infiniband-diags") from None
            try:
                async with asyncio.timeout(deadline):
                    out, err = await process.communicate()
            except TimeoutError:
                raise ToolHungError(f"{program} did not end within {deadline:.0f} s and was stopped") from None
            finally:
                if process.returncode is None:
                    await _kill(process)
        assert process.returncode is not None
        return Output(process.returncode, out.decode(errors="replace"), err.decode(errors="replace"))


async def _kill(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(TimeoutError):
        async with asyncio.timeout(1):
            await process.wait()


def failed(program: str, output: Output) -> ToolFailedError:
    """What a program's own words say."""
    words = [line.strip() for line in (output.err + output.out).splitlines() if line.strip() and "sim_connect" not in line]
    return ToolFailedError(f"{program} ended with exit code {output.code}: {words[-1] if words else 'it said nothing'}")
