"""Where in a log what was written since a time begins, by the times that the log writer notes beside it."""

from __future__ import annotations

import os
from pathlib import Path

from llmgw_agent.process.logmon import NAME, TIME_EVERY, TIMES

#: A line that began before the time and ended after it is given whole, as far as this reaches back.
_BACK = 64 << 10


def times_of(part: Path) -> Path:
    """``engine.log.2`` → ``engine.times.2``."""
    return part.with_name(TIMES + part.name[len(NAME) :])


def offset_since(fd: int, part: Path, since: float) -> int:
    """Bytes before this one were written before ``since`` (Unix time); the byte begins a line.

    What is noted lags by a second or 64 KiB at most, and always to the side of more. Without notes, as in a log that is older
    than they are, a part counts as old or new as a whole. ``fd`` is the open ``part``, perhaps rotated meanwhile.
    """
    status = os.fstat(fd)
    if status.st_mtime < since:
        return status.st_size
    try:
        noted = times_of(part).read_bytes()
    except OSError:
        return 0
    offset = min(_find(noted, since, status.st_size), status.st_size)
    start = max(0, offset - _BACK)
    before = os.pread(fd, offset - start, start)
    cut = before.rfind(b"\n") + 1
    return start + cut if cut or start == 0 else offset


def _find(noted: bytes, since: float, size: int) -> int:
    """The offset of the first note whose bytes may be new enough: they were written within ``TIME_EVERY`` of it.

    ``size``: what is returned when all are too old. A clock that was set back makes it more that is found, not less.
    """
    known = False
    for line in noted.splitlines():
        when, _, offset = line.partition(b" ")
        try:
            at, position = float(when), int(offset)
        except ValueError:
            continue  # a full disk cut it
        known = True
        if at + TIME_EVERY > since:
            return position
    return size if known else 0
