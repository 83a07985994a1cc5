"""Memory that this machine, or the container that the agent runs in, really has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil

CGROUP_ROOT = Path("/sys/fs/cgroup")
SELF_CGROUP = Path("/proc/self/cgroup")
#: cgroup v1 writes "no limit" as a number near 2**63.
_NO_LIMIT = 1 << 60


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes."""

    total: int
    available: int


def read_memory(root: Path = CGROUP_ROOT, own: Path = SELF_CGROUP) -> Memory:
    """The machine's memory, or less where a control group (v1 or v2) limits it."""
    machine = psutil.virtual_memory()
    total, available = int(machine.total), int(machine.available)
    for folder, limit_name, usage_name in _groups(root, own):
        limit = _number(folder / limit_name)
        if limit is None or limit >= _NO_LIMIT:
            continue
        total = min(total, limit)
        usage = _number(folder / usage_name)
        if usage is not None:
            available = min(available, max(0, limit - usage + _reclaimable(folder)))
    return Memory(total, min(total, available))


def _groups(root: Path, own: Path) -> list[tuple[Path, str, str]]:
    """Folder, limit file and usage file of the own memory group and its parents; a parent's limit counts as well."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers == "":
            found += [(folder, "memory.max", "memory.current") for folder in _upwards(root, path)]
        elif "memory" in controllers.split(","):
            base = root / "memory"
            found += [(folder, "memory.limit_in_bytes", "memory.usage_in_bytes") for folder in _upwards(base, path)]
    return found


def _upwards(root: Path, path: str) -> list[Path]:
    parts = [part for part in path.split("/") if part and part != ".."]
    return [root.joinpath(*parts[:count]) for count in range(len(parts), -1, -1)]


def _number(path: Path) -> int | None:
    """None for "max", for a missing file and for rubbish."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _reclaimable(folder: Path) -> int:
    """Page cache in the group: counted as used, given back when asked for."""
    try:
        pairs = dict(line.split(" ", 1) for line in (folder / "memory.stat").read_text().splitlines() if " " in line)
        return int(pairs.get("inactive_file", pairs.get("total_inactive_file", "0")))
    except (OSError, ValueError):
        return 0
