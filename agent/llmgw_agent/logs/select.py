"""Reads a whole log, all its parts, for the lines that somebody wants: since a time, with a match, the last so many."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from llmgw_agent.logs.files import parts
from llmgw_agent.logs.grep import Keep
from llmgw_agent.logs.times import offset_since
from llmgw_agent.process.logmon import NAME

#: Read and looked through at once.
STEP = 512 << 10
#: What the last lines are chosen from is held in memory; of more than this the oldest go.
MOST_HELD = 32 << 20


@dataclass(slots=True)
class Selection:
    """``current``: the open current part, which is read to its end; None if there is none yet. Blocking."""

    folder: Path
    current: int | None
    lines: int
    """How many of the last ones; 0: all."""
    since: float
    keep: Keep | None
    rest: bytes = b""
    """After :meth:`chunks`: the beginning of a line that is not complete."""
    _held: deque[bytes] = field(default_factory=deque)
    _size: int = 0

    def chunks(self, *, whole: bool) -> Iterator[bytes]:
        """Whole lines, oldest first, and empty chunks now and then. ``whole``: the last line counts as complete."""
        with contextlib.ExitStack() as stack:
            for fd, path in self._open(stack):
                if self.since:
                    os.lseek(fd, offset_since(fd, path, self.since), os.SEEK_SET)
                while data := os.read(fd, STEP):
                    data = self.rest + data
                    cut = data.rfind(b"\n") + 1
                    if cut == 0 and len(data) > STEP:
                        cut = len(data)  # a line that does not end
                    self.rest = data[cut:]
                    yield from self._take(data[:cut])
        if whole:
            yield from self._take(self.rest)
            self.rest = b""
        yield from self._held

    def _open(self, stack: contextlib.ExitStack) -> list[tuple[int, Path]]:
        """Oldest first. Opened newest first: whatever is rotated meanwhile is then seen twice, and never missed."""
        found: list[tuple[int, Path]] = []
        known: set[int] = set()
        if self.current is not None:
            found.append((self.current, self.folder / NAME))
            known.add(os.fstat(self.current).st_ino)
        for path in reversed(parts(self.folder)):
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                continue
            stack.callback(os.close, fd)
            inode = os.fstat(fd).st_ino
            if inode not in known and (path.name != NAME or self.current is None):
                known.add(inode)
                found.append((fd, path))
        return found[::-1]

    def _take(self, data: bytes) -> Iterator[bytes]:
        kept = self.keep(data) if self.keep is not None else data
        if self.lines == 0:
            yield kept
            return
        for line in kept.splitlines(keepends=True)[-self.lines :]:
            self._held.append(line)
            self._size += len(line)
            while len(self._held) > self.lines or self._size > MOST_HELD:
                self._size -= len(self._held.popleft())
        # Whoever waits gets to see that there is still work going on.
        yield b""
