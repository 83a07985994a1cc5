"""A lock file, so that several agents, or an agent and a uv that outlived another one, do not build the same at once."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self


class Lock:
    """Freed when every process that has the descriptor closed it or ended."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self.fd)

    def take(self) -> bool:
        """Whether it is ours now; does not wait."""
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
