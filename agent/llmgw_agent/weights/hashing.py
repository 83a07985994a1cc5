"""Hashes a file while it is being written, in a thread of its own, reading back what the page cache still holds."""

from __future__ import annotations

import errno
import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from llmgw_proto.digests import Digest, Kind, new_hasher

if TYPE_CHECKING:
    from _hashlib import HASH

_BLOCK: Final = 1 << 20
_STEP: Final = 4 << 20  # how far the writer gets ahead before the hasher is woken
_MOST_BLOCKS: Final = 32  # of up to 1 MiB, kept for a hasher that lags a little
_FLUSH: Final = 256 << 20  # how much is hashed between two flushes to the disk


class Follower:
    """Follows a growing file. The writer calls :meth:`advance`, then :meth:`finish`; hashing never holds it up.

    Blocks are hashed from memory as long as hashing keeps up; what it has missed (or what was there before) it reads back.
    """

    def __init__(self, descriptor: int, kind: Kind, size: int) -> None:
        self._descriptor = descriptor
        self._hash: HASH = new_hasher(kind, size)
        self._kind: Kind = kind
        self._end = 0
        self._blocks: deque[tuple[int, bytes]] = deque()  # with where each begins
        self._complete = False
        self._abandoned = False
        self._changed = threading.Condition()
        self._problem: OSError | None = None
        self.hashed = 0
        self.flushed = 0  # bytes known to be on the disk
        self._thread = threading.Thread(target=self._run, name="weights-hash")
        self._thread.start()

    def advance(self, end: int, block: bytes = b"") -> None:
        """The file has grown to ``end`` bytes, of which ``block`` are the last ones."""
        if block and len(self._blocks) < _MOST_BLOCKS:
            self._blocks.append((end - len(block), block))
        before, self._end = self._end, end
        if before // _STEP != end // _STEP:
            with self._changed:
                self._changed.notify()

    def finish(self) -> Digest:
        """Hashes the rest and flushes the file. Raises OSError."""
        self._stop()
        if self._problem is not None:
            raise self._problem
        os.fsync(self._descriptor)
        return Digest(self._kind, self._hash.hexdigest())

    def abandon(self) -> None:
        """Stops without a digest; may be called after finish() too."""
        self._abandoned = True
        self._stop()

    def _stop(self) -> None:
        with self._changed:
            self._complete = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        buffer = memoryview(bytearray(_BLOCK))
        try:
            while self._more():
                while self.hashed < self._end and not self._abandoned:
                    if (piece := self._next(buffer)) is None:
                        self._problem = OSError(errno.EIO, "the file became shorter while it was written")
                        return
                    self._hash.update(piece)
                    self.hashed += len(piece)
                    if self.hashed - self.flushed >= _FLUSH:
                        os.fdatasync(self._descriptor)
                        self.flushed = self.hashed
        except OSError as error:
            self._problem = error

    def _next(self, buffer: memoryview) -> bytes | memoryview | None:
        """The bytes that follow: the next block in memory when it is next, else as many as lie before it in the file."""
        end = self._end
        while self._blocks:
            start, block = self._blocks[0]
            if start > self.hashed:
                end = start
                break
            self._blocks.popleft()
            if start == self.hashed:
                return block
        count = os.preadv(self._descriptor, [buffer[: min(_BLOCK, end - self.hashed)]], self.hashed)
        return buffer[:count] if count else None

    def _more(self) -> bool:
        """Waits for more to hash; False at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._complete or self._end - self.hashed >= _STEP)
        return not self._abandoned and self.hashed < self._end


def file_digest(path: Path, kind: Kind, read: Callable[[int], None] = lambda _: None) -> Digest:
    """``read`` hears of each block's bytes. Raises OSError and what ``read`` raises. Blocking."""
    with path.open("rb", buffering=0) as file:
        return stream_digest(file, kind, read)


def stream_digest(file: IO[bytes], kind: Kind, read: Callable[[int], None] = lambda _: None) -> Digest:
    """The digest of an open file from where it stands. Raises OSError. Blocking."""
    digest = new_hasher(kind, os.fstat(file.fileno()).st_size)
    while block := file.read(_BLOCK):
        digest.update(block)
        read(len(block))
    return Digest(kind, digest.hexdigest())
