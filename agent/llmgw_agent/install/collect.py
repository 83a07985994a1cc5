"""Which environments may go, and removing them."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from llmgw_agent.install.environments import Environment, Environments
from llmgw_agent.install.locks import Lock
from llmgw_agent.process.identity import SHARD

#: An engine that is being started from one is not seen running yet.
GRACE_SECONDS = 3600.0


def superfluous(
    all_of_engine: Sequence[Environment], needed: Collection[Path], running: Collection[Path], keep: int, now: float
) -> list[Environment]:
    """Pure: those that are neither needed, nor run, nor just used, but for the ``keep`` last used of them."""
    idle = [
        each
        for each in all_of_engine
        if each.path not in needed and each.path not in running and now - each.used_at >= GRACE_SECONDS
    ]
    return sorted(idle, key=lambda each: each.used_at, reverse=True)[keep:]


def running_environments(root: Path) -> dict[Path, set[str]]:
    """Environments below ``root`` that processes of this host run in, by the variable VIRTUAL_ENV that engines are given, and
    the shards that they belong to (none: a process that is no engine).

    Whether their names on the command line still tell it does not matter: engines rename their processes.
    """
    found: dict[Path, set[str]] = {}
    start, mark = b"VIRTUAL_ENV=" + os.fsencode(root) + b"/", SHARD.encode() + b"="
    for each in Path("/proc").iterdir():
        if not each.name.isdigit():
            continue
        try:
            variables = (each / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        for path in (os.fsdecode(one.partition(b"=")[2]) for one in variables if one.startswith(start)):
            shards = (os.fsdecode(one.partition(b"=")[2]) for one in variables if one.startswith(mark))
            found.setdefault(Path(path), set()).update(shards)
    return found


def remove(environments: Environments, engine: str, gone: Sequence[Environment]) -> None:
    """Also what killed installations and removals left. Never raises: what cannot be removed is tried again next time."""
    folder = environments.folder(engine)
    with contextlib.suppress(OSError):
        for environment in gone:
            trash = folder / f".trash-{environment.path.name}"
            # Onto what an interrupted removal left it cannot be moved.
            shutil.rmtree(trash, ignore_errors=True)
            environment.path.rename(trash)
        for each in list(folder.iterdir()):
            if each.name.startswith(".trash-") or (each.name.startswith(".resolving-") and _is_old(each)):
                shutil.rmtree(each, ignore_errors=True)
            elif each.name.startswith(".building-"):
                with Lock(folder / f".{each.name.removeprefix('.building-')}.lock") as lock:
                    if lock.take():
                        shutil.rmtree(each, ignore_errors=True)


def _is_old(path: Path) -> bool:
    """Longer ago than any resolving takes."""
    try:
        return time.time() - path.stat().st_mtime > GRACE_SECONDS
    except OSError:
        return False


def size_of(path: Path) -> int:
    """Bytes on the disk below a folder. Blocking. What vanishes meanwhile does not count."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                total += (Path(folder) / name).lstat().st_blocks * 512
    return total
