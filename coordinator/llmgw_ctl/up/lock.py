"""One ``up`` per state folder, and what a killed one left behind."""

from __future__ import annotations

import fcntl
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from llmgw_base.clock import Clock
from llmgw_ctl.errors import StackError
from llmgw_ctl.running import start_time
from llmgw_ctl.up.layout import Layout
from llmgw_ctl.up.plan import GRACE, STOP_ORDER

_POLL_SECONDS = 0.05


@contextmanager
def hold(layout: Layout) -> Iterator[None]:
    """Makes the folders and holds the lock of the state folder.

    Raises:
        StackError: another ``up`` holds it, or the folder cannot be written.
    """
    try:
        for folder in layout.folders():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _ours(layout.sockets)
        file = layout.lock.open("a+")
    except OSError as error:
        raise StackError(
            f"the state folder {layout.root} cannot be used: {error.filename}: {error.strerror}",
            "choose another with --state-dir",
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            pid = file.read().strip() or "unknown"
            raise StackError(
                f"an `llmgwctl up` runs on {layout.root} already (pid {pid})",
                "use that one, stop it with Ctrl-C or kill, or choose another --state-dir and --listen",
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)
            if not layout.sockets.is_relative_to(layout.root):
                with suppress(OSError):  # not empty: etcd was killed; it is used again by the next start
                    layout.sockets.rmdir()


def _ours(folder: Path) -> None:
    """A folder below /tmp may have been made by somebody else before us."""
    status = folder.lstat()
    if status.st_uid != os.geteuid() or not folder.is_dir() or folder.is_symlink():
        raise StackError(f"{folder} belongs to somebody else", "remove it, or choose a --state-dir with a shorter path")
    folder.chmod(0o700)


def leftovers(layout: Layout) -> list[tuple[str, int]]:
    """Children of an earlier ``up`` that still run, as (name, pid), in the order to stop them."""
    found = []
    for name in STOP_ORDER:
        try:
            data = json.loads(layout.pid_file(name).read_text())
            pid, started = int(data["pid"]), data["started"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if started is not None and start_time(pid) == started:
            found.append((name, pid))
    return found


async def clear(layout: Layout, clock: Clock) -> list[str]:
    """Stops what an earlier ``up`` left running and returns their names; engines are left to the agent, which adopts them."""
    cleared = []
    for name, pid in leftovers(layout):
        started = start_time(pid)
        for number, grace in ((signal.SIGTERM, GRACE[name]), (signal.SIGKILL, 5.0)):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                break
            until = clock.monotonic() + grace
            while start_time(pid) == started and clock.monotonic() < until:
                await clock.sleep(_POLL_SECONDS)
            if start_time(pid) != started:
                break
        cleared.append(f"{name} (pid {pid})")
    for name in STOP_ORDER:
        layout.pid_file(name).unlink(missing_ok=True)
    return cleared
