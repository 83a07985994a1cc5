"""The file systems that llmgw writes to."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from llmgw_proto.records import DiskFacts


def read_disks(paths: Iterable[Path]) -> list[DiskFacts]:
    """One entry per file system, named by the first of the paths on it. Paths that do not exist are left out."""
    found: dict[int, DiskFacts] = {}
    for path in paths:
        try:
            device, usage = path.stat().st_dev, os.statvfs(path)
        except OSError:
            continue
        total, free = usage.f_blocks * usage.f_frsize, usage.f_bavail * usage.f_frsize
        found.setdefault(device, DiskFacts(path=str(path), total_bytes=total, free_bytes=free))
    return list(found.values())
