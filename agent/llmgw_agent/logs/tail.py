"""Reads a growing, rotated log: the last lines, then what is added."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from pathlib import Path

from llmgw_agent.logs.files import parts
from llmgw_agent.logs.grep import Keep
from llmgw_agent.logs.select import Selection
from llmgw_agent.process.logmon import NAME
from llmgw_base.clock import Clock

CHUNK = 64 << 10
LOOK_SECONDS = 0.2


def last_lines(data: bytes, count: int) -> bytes:
    """The last ``count`` lines, the very last one perhaps without its line feed."""
    position = len(data) - 1 if data.endswith(b"\n") else len(data)
    for _ in range(count):
        position = data.rfind(b"\n", 0, position)
        if position < 0:
            return data
    return data[position + 1 :]


@dataclass(slots=True)
class Current:
    """An open current log file; it stays readable after it was rotated away."""

    fd: int

    @classmethod
    def open(cls, folder: Path) -> Current | None:
        try:
            return cls(os.open(folder / NAME, os.O_RDONLY | os.O_CLOEXEC))
        except FileNotFoundError:
            return None

    def is_still(self, folder: Path) -> bool:
        try:
            there = (folder / NAME).stat()
        except FileNotFoundError:
            return False
        mine = os.fstat(self.fd)
        return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)

    def read(self) -> bytes:
        return os.read(self.fd, CHUNK)

    def close(self) -> None:
        os.close(self.fd)


def _read_all(current: Current | None) -> bytes:
    chunks = []
    while current is not None and (chunk := current.read()):
        chunks.append(chunk)
    return b"".join(chunks)


def _before(folder: Path, current: bytes, lines: int) -> bytes:
    """The last ``lines`` lines of older parts and ``current`` together."""
    data = current
    for part in reversed([path for path in parts(folder) if path.name != NAME]):
        if data.count(b"\n") > lines:
            break
        try:
            data = part.read_bytes() + data
        except OSError:
            continue
    return last_lines(data, lines)


async def _next(chunks: Iterator[bytes]) -> bytes | None:
    """The next one, found in a thread; None after the last. When cancelled, waits for the thread: it reads open files."""
    step = asyncio.ensure_future(asyncio.to_thread(next, chunks, None))
    try:
        return await asyncio.shield(step)
    except asyncio.CancelledError:
        await asyncio.gather(step, return_exceptions=True)
        raise


async def tail(
    folder: Path, lines: int, *, follow: bool, clock: Clock, since: float = 0.0, keep: Keep | None = None
) -> AsyncGenerator[bytes, None]:
    """Chunks of whole lines as they stand in the log, oldest first; with ``follow`` for ever, over rotations.

    ``lines``: how many from the end to begin with, over all parts; 0 begins at the start of the current part. With ``since``
    (Unix time) or ``keep`` (which lines are wanted) it counts those that are left, and 0 leaves all of them.
    """
    current = Current.open(folder)
    try:
        if since or keep is not None:
            selection = Selection(folder, current.fd if current is not None else None, lines, since, keep)
            chunks = selection.chunks(whole=not follow)
            # A thread for each step: a long log is looked through without holding up anything else.
            while (chunk := await _next(chunks)) is not None:
                if chunk:
                    yield chunk
            rest, fresh = selection.rest, b""
        else:
            data = _read_all(current)
            rest, fresh = b"", data if lines == 0 else _before(folder, data, lines)
        while True:
            rest += fresh
            cut = len(rest) if not follow else rest.rfind(b"\n") + 1
            if cut == 0 and len(rest) > 4 * CHUNK:  # a line that does not end
                cut = len(rest)
            complete, rest = rest[:cut], rest[cut:]
            wanted = keep(complete) if keep is not None else complete
            for start in range(0, len(wanted), CHUNK):
                yield wanted[start : start + CHUNK]
            if not follow:
                return
            fresh = current.read() if current is not None else b""
            if fresh:
                continue
            if current is None or not current.is_still(folder):
                following = Current.open(folder)
                if following is not None:
                    # What was written between the last read and the rotation is still in the old file.
                    fresh = _read_all(current)
                    if current is not None:
                        current.close()
                    current = following
                    continue
            await clock.sleep(LOOK_SECONDS)
    finally:
        if current is not None:
            current.close()
