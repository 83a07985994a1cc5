"""Writes an engine's output to rotated files, as a small process of its own that outlives the agent.

``python -I -S logmon.py PIPE FOLDER MAX_BYTES FILES``

It reads the named pipe until no process of the engine has it open any more, then removes the pipe and ends. The engine holds
the pipe open for reading too, so that it gets no SIGPIPE should this process die; the agent then starts another one.

Beside each part of ``engine.log`` stands ``engine.times`` with the same number: lines ``<Unix time> <offset>``, one for each
second or 64 KiB in which something came: what is in the log from that offset on was written at that time or later.

Whatever happens to the disk, the engine is not held up: what cannot be written is dropped, and so is what comes faster than
``RATE`` over any length of time; a line in the log says how much. Only the standard library is imported: this file runs alone.
"""

# One such process runs per engine; without pathlib and contextlib it stays small.
# ruff: noqa: PTH105, PTH108, PTH116, PTH118, SIM105
from __future__ import annotations

import os
import sys
import time

NAME = "engine.log"
TIMES = "engine.times"
CHUNK = 1 << 16
TIME_EVERY, TIME_BYTES = 1.0, 64 << 10
RATE = 4 << 20
BURST = 32 << 20


class Budget:
    """A token bucket in bytes."""

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate, self._burst = rate, burst
        self._tokens, self._at = burst, now

    def take(self, size: int, now: float) -> bool:
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
        if self._tokens < size:
            return False
        self._tokens -= size
        return True


class RotatingFile:
    """``engine.log``, ``engine.log.1`` (older) … at most ``files`` of them, each of about ``max_bytes``; and their times."""

    def __init__(self, folder: str, max_bytes: int, files: int) -> None:
        self._path, self._times_path = os.path.join(folder, NAME), os.path.join(folder, TIMES)
        self._max_bytes, self._files = max_bytes, files
        self._fd = self._times_fd = -1
        self._size = 0
        self._noted: tuple[float, int] | None = None
        """When and at which size the time was last noted."""

    def now(self) -> float:
        """Unix time; tests have another."""
        return time.time()

    def write(self, data: bytes) -> bool:
        """Whether it was written; a full disk is no error."""
        try:
            if self._fd < 0 or self._size + len(data) > self._max_bytes:
                self._open_next(len(data))
            self._note_time()
            view = memoryview(data)
            while view:
                written = os.write(self._fd, view)
                self._size += written
                view = view[written:]
        except OSError:
            return False
        return True

    def _note_time(self) -> None:
        """Before the bytes that it is about. If it cannot be written, the next write tries again."""
        now = self.now()
        if self._noted is not None and 0 <= now - self._noted[0] < TIME_EVERY and self._size - self._noted[1] < TIME_BYTES:
            return
        try:
            os.write(self._times_fd, b"%.3f %d\n" % (now, self._size))
        except OSError:
            return
        self._noted = now, self._size

    def _open_next(self, coming: int) -> None:
        for fd in (self._fd, self._times_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._times_fd = -1
        self._noted = None
        try:
            self._size = os.stat(self._path).st_size
        except FileNotFoundError:
            self._size = 0
        if self._size and self._size + coming > self._max_bytes:
            # First the times: those of another part would make lines look newer than they are.
            self._rotate(self._times_path, holes=True)
            self._rotate(self._path)
            self._size = 0
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        try:
            self._times_fd = os.open(self._times_path, flags, 0o640)
        except OSError:
            pass
        self._fd = os.open(self._path, flags, 0o640)

    def _rotate(self, path: str, *, holes: bool = False) -> None:
        """``holes``: a part that is missing is missing in the next place too, instead of what stood there before."""
        for number in range(self._files - 1, 0, -1):
            older = f"{path}.{number}"
            newer = f"{path}.{number - 1}" if number > 1 else path
            try:
                os.replace(newer, older)
            except FileNotFoundError:
                if holes:
                    _unlink(older)
        if self._files == 1:
            _unlink(path)


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def copy(source: int, target: RotatingFile, budget: Budget) -> None:
    dropped = 0
    while data := os.read(source, CHUNK):
        if not budget.take(len(data), time.monotonic()):
            dropped += len(data)
            # Keeps reading, so that the engine is not held up, but not at the full speed of a core.
            time.sleep(0.002)
            continue
        if dropped and target.write(b"\n[llmgw: %d bytes of output dropped here]\n" % dropped):
            dropped = 0
        if not target.write(data):
            dropped += len(data)


def main(argv: list[str]) -> int:
    pipe, folder, max_bytes, files = argv
    # Not waiting for a writer to open it: when none has it open any more, there is nothing left to do.
    source = os.open(pipe, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    os.set_blocking(source, True)
    copy(source, RotatingFile(folder, int(max_bytes), int(files)), Budget(RATE, BURST, time.monotonic()))
    _unlink(pipe)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
