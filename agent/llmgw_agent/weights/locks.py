"""Locks that hold among tasks and among processes, and vanish with their holder (flock)."""

from __future__ import annotations

import fcntl
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

from llmgw_base.clock import Clock

_POLL_SECONDS: Final = 0.1


@asynccontextmanager
async def held(path: Path, clock: Clock, *, waiting: Callable[[], None] = lambda: None) -> AsyncIterator[None]:
    """Waits for the lock without blocking the loop, calling ``waiting`` at each look; for locks that are held long."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        while not _try(descriptor):
            waiting()
            await clock.sleep(_POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def held_briefly(path: Path) -> Iterator[None]:
    """Blocks the calling thread; for steps of milliseconds."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def is_free(path: Path) -> bool:
    """Whether nobody holds the lock at this moment."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        return _try(descriptor)
    finally:
        os.close(descriptor)


def _try(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
