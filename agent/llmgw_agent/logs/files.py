"""A shard's log files: ``engine.log`` and its older parts; ``first-failure.log`` of the present epoch; ``suspect.log``."""

from __future__ import annotations

import shutil
from pathlib import Path

from llmgw_agent.process.logmon import NAME

FIRST_FAILURE = "first-failure.log"
SUSPECT = "suspect.log"
PINNED_BYTES = 256 << 10


def headline_of(attempt: str) -> str:
    """How the log of one start of the engine begins."""
    return f"[llmgw] attempt {attempt}"


def parts(folder: Path) -> list[Path]:
    """The files that hold the log, oldest first."""
    older = sorted(
        (path for path in folder.glob(f"{NAME}.*") if path.suffix[1:].isdigit()), key=lambda path: -int(path.suffix[1:])
    )
    return [*older, *([folder / NAME] if (folder / NAME).exists() else [])]


def read_end(folder: Path, size: int) -> bytes:
    """The last ``size`` bytes of the whole log; less if there is less. Parts may be rotated away meanwhile."""
    chunks: list[bytes] = []
    for path in reversed(parts(folder)):
        try:
            with path.open("rb") as file:
                file.seek(0, 2)
                file.seek(max(0, file.tell() - size))
                chunk = file.read(size)
        except OSError:
            continue
        chunks.append(chunk)
        size -= len(chunk)
        if size <= 0:
            break
    return b"".join(reversed(chunks))


def read_attempt(folder: Path, attempt: str, size: int = 64 << 10) -> list[str]:
    """The last lines that one attempt wrote, at most ``size`` bytes of them."""
    text = read_end(folder, size).decode(errors="replace")
    _, found, own = text.rpartition(headline_of(attempt))
    return (own.partition("\n")[2] if found else text).splitlines()


def pin_first_failure(folder: Path, epoch: int, reason: str, lines: list[str]) -> None:
    """Keeps the log of an epoch's first failure from being rotated away by the failures that follow."""
    body = "\n".join(lines).encode(errors="replace")[-PINNED_BYTES:]
    (folder / FIRST_FAILURE).write_bytes(f"[llmgw] first failure of epoch {epoch}: {reason}\n".encode() + body + b"\n")


def pin_evidence(folder: Path, epoch: int, reason: str, lines: list[str]) -> None:
    """Keeps what was seen of an engine when it became a suspect; the latest time counts."""
    body = "\n".join(lines).encode(errors="replace")[:PINNED_BYTES]
    (folder / SUSPECT).write_bytes(f"[llmgw] suspect in epoch {epoch}: {reason}\n".encode() + body + b"\n")


def prune(root: Path, living: set[str], keep: int) -> None:
    """Removes the log folders of removed shards but the ``keep`` newest. ``living``: folder names in use."""
    try:
        dead = [path for path in root.iterdir() if path.is_dir() and path.name not in living]
    except OSError:
        return
    dead.sort(key=_changed_at, reverse=True)
    for path in dead[keep:]:
        shutil.rmtree(path, ignore_errors=True)


def _changed_at(path: Path) -> float:
    """Seconds since the epoch; 0 for what was removed meanwhile."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
