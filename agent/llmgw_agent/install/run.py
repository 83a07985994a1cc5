"""Runs one program of an installation: output to a file, all its processes ended when it is not wanted any more."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import shlex
import shutil
import signal
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from llmgw_agent.install.errors import InstallFailedError, InstallRefusedError
from llmgw_agent.install.plan import masked

LINES_KEPT = 200
_FOREIGN = frozenset({"VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "NOTIFY_SOCKET"})


@dataclass(frozen=True, slots=True)
class Done:
    """``lines``: the last ones of stdout and stderr together."""

    status: int
    lines: list[str]


def find_uv() -> list[str]:
    """How to call uv.

    Raises:
        InstallRefusedError: it is not there.
    """
    try:
        # The program itself: with `python -m uv` the agent's own paths would have to reach the child.
        path: str | None = importlib.import_module("uv").find_uv_bin()
    except (ImportError, FileNotFoundError):
        path = shutil.which("uv")
    if path is None:
        raise InstallRefusedError(f"uv, which installs engines, is missing; run `{sys.executable} -m pip install uv`")
    return [path]


def environment(cache: Path) -> dict[str, str]:
    """For uv and for smoke tests. Proxies and uv's own settings in the agent's environment hold."""
    own = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
    # On one file system with the environments, so that files are linked and not copied.
    return {"UV_CACHE_DIR": str(cache), **own, "UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1", "NO_COLOR": "1"}


async def run(
    argv: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    *,
    limit: float,
    hold: int | None = None,
    on_line: Callable[[str], None] = lambda _: None,
) -> Done:
    """Runs to the end. A program that outlives the agent keeps the lock ``hold`` (a descriptor) until it has ended too.

    Raises:
        InstallFailedError: it took longer than ``limit`` seconds, or could not be started.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            cwd="/",
            env=dict(environment),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            pass_fds=() if hold is None else (hold,),
            limit=1 << 20,
        )
    except OSError as error:
        raise InstallFailedError(f"{argv[0]} cannot be started: {error.strerror}") from error
    try:
        async with asyncio.timeout(limit):
            lines = await _read(process, argv, log, on_line)
            return Done(await process.wait(), lines)
    except TimeoutError:
        raise InstallFailedError(
            f"`{shlex.join(masked(argv[:6]))} …` did not end within {limit:g} s; look at {log}, or raise timeout_seconds"
        ) from None
    finally:
        # Also after a regular end: nothing that it started may stay.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def _read(
    process: asyncio.subprocess.Process, argv: Sequence[str], log: Path, on_line: Callable[[str], None]
) -> list[str]:
    assert process.stdout is not None
    lines: deque[str] = deque(maxlen=LINES_KEPT)
    with log.open("a", errors="replace") as file:
        file.write(f"$ {shlex.join(masked(argv))}\n")
        async for raw in process.stdout:
            line = raw.decode(errors="replace").rstrip()
            lines.append(line)
            file.write(line + "\n")
            file.flush()
            on_line(line)
    return list(lines)
