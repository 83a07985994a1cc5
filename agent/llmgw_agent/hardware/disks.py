"""Disks: the file systems that weights and engines are kept on."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from llmgw_agent.hardware.sysfs import Tree


class Disk(msgspec.Struct):
    """The file system that holds ``path``. ``rotational`` is None where that is not known (network, overlay)."""

    path: str
    mount: str
    source: str
    kind: str
    total_bytes: int
    free_bytes: int
    rotational: bool | None = None


def read(paths: list[str], tree: Tree, mounts: Path = Path("/proc/self/mounts")) -> list[Disk]:
    """One entry per path; a path that does not exist yet is judged by its nearest parent that does."""
    table = _mounts(mounts)
    found = []
    for wanted in paths:
        path = Path(wanted)
        while not path.exists() and path != path.parent:
            path = path.parent
        try:
            space = os.statvfs(path)
        except OSError:
            continue
        real = str(path.resolve())
        mount, source, kind = max(
            (entry for entry in table if real == entry[0] or real.startswith(entry[0].rstrip("/") + "/")),
            key=lambda entry: len(entry[0]),
            default=("/", "", ""),
        )
        found.append(
            Disk(
                path=wanted,
                mount=mount,
                source=source,
                kind=kind,
                total_bytes=space.f_blocks * space.f_frsize,
                free_bytes=space.f_bavail * space.f_frsize,
                rotational=_rotational(tree, source),
            )
        )
    return found


def _mounts(path: Path) -> list[tuple[str, str, str]]:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    entries = (line.split() for line in lines)
    return [(parts[1].replace("\\040", " "), parts[0], parts[2]) for parts in entries if len(parts) >= 3]


def _rotational(tree: Tree, source: str) -> bool | None:
    name = source.removeprefix("/dev/")
    if name == source:
        return None
    place = tree.real("class/block", name)
    if place is None:
        return None
    # A partition has no queue of its own; its disk, one folder up, has.
    for folder in (place, place.rpartition("/")[0]):
        value = tree.number(folder, "queue/rotational")
        if value is not None:
            return value == 1
    return None
