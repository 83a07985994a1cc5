"""Room on the disk: how much downloads may use, and the error that says what is missing."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from .errors import NoSpaceError

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def free_bytes(path: Path, reserve: int) -> int:
    """Bytes that may be written under ``path`` so that ``reserve`` stay free. Raises OSError."""
    facts = os.statvfs(path)
    return max(0, facts.f_bavail * facts.f_frsize - reserve)


def no_space(what: str, needed: int, free: int, root: Path) -> NoSpaceError:
    return NoSpaceError(
        f"{what}: {needed} bytes ({needed / 1e9:.1f} GB) are needed but {free} are free under {root}; "
        "remove weights that are not used, or give it a larger disk. What was fetched is kept and continued",
        needed=needed,
        free=free,
    )
