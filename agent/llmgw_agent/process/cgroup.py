"""Control groups: who is in one, that nobody is left in it, and the end of everybody in it.

A process cannot leave its cgroup by a double fork, a session of its own or another environment; only root moves it. So an
empty cgroup is the proof that an engine is gone. Version 2 tells it in ``cgroup.events`` and kills at one stroke
(``cgroup.kill``, since Linux 5.14); with version 1, or an older kernel, processes are looked up again until there are none.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from llmgw_agent.process.identity import PROC, Identity, boot_id, identify

_OCTAL = re.compile(r"\\([0-7]{3})")
#: Of version 1, in this order: what is there to group processes, and what can do no harm when it is used for that.
_VERSION_1 = ("name=", "pids", "freezer")


@dataclass(frozen=True, slots=True)
class Cgroup:
    """One folder in a cgroup file system, with everything below it. It may be gone already: then nobody is in it."""

    folder: Path

    def pids(self) -> set[int]:
        """Numbers as this process sees them; a member in another PID namespace cannot be seen."""
        found: set[int] = set()
        for folder in self._folders():
            try:
                found.update(int(each) for each in (folder / "cgroup.procs").read_text().split())
            except (OSError, ValueError):
                continue
        return found - {0}

    def members(self) -> set[Identity]:
        """The living ones."""
        boot = boot_id()
        return {who for pid in self.pids() if (who := identify(pid, boot)) is not None}

    @property
    def populated(self) -> bool:
        """Whether a process that lives is in it, seen or not."""
        value = self._figure("cgroup.events", "populated")
        return bool(value) if value is not None else bool(self.members())

    def kill(self) -> None:
        """SIGKILL to everybody in it, whatever they do meanwhile; where the kernel cannot, to those who are in it now."""
        try:
            (self.folder / "cgroup.kill").write_text("1")
        except OSError:
            for pid in self.pids():
                try:
                    os.kill(pid, signal.SIGKILL)
                except (ProcessLookupError, PermissionError):
                    continue

    @property
    def oom_kills(self) -> int:
        """How many of its processes the kernel killed because memory ran out; 0 too where that is not counted."""
        return self._figure("memory.events", "oom_kill") or 0

    def remove(self) -> bool:
        """Whether it is gone; one with processes stays."""
        for folder in reversed(list(self._folders())):
            try:
                folder.rmdir()
            except OSError:
                return not self.folder.exists()
        return not self.folder.exists()

    def _folders(self) -> Iterator[Path]:
        """Itself first, those below it after it."""
        for folder, _, _ in os.walk(self.folder):
            yield Path(folder)

    def _figure(self, file: str, name: str) -> int | None:
        try:
            lines = (self.folder / file).read_text().splitlines()
        except OSError:
            return None
        values = [line.split()[1] for line in lines if line.split()[:1] == [name]]
        return int(values[0]) if values else None


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """A mounted cgroup file system. ``kind``: ``2``, or what a hierarchy of version 1 is for; ``own``: this process's place."""

    kind: str
    mount: Path
    own: Path


def hierarchies(proc: Path = PROC) -> list[Hierarchy]:
    """Those in which processes can be grouped, the best first."""
    mounted = _mounts(proc)
    found = [Hierarchy("2", mounted["2"], _below(mounted["2"], own_path(proc / "self", "2")))] if "2" in mounted else []
    for wanted in _VERSION_1:
        for kind, mount in mounted.items():
            if kind.startswith(wanted):
                found.append(Hierarchy(kind, mount, _below(mount, own_path(proc / "self", kind))))
    return found


def own_path(process: Path, kind: str) -> str:
    """The path of a process, by its folder in ``/proc``, in that hierarchy; ``/`` if it does not tell."""
    try:
        lines = (process / "cgroup").read_text().splitlines()
    except OSError:
        return "/"
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if (kind == "2" and number == "0" and not controllers) or (kind != "2" and kind in controllers.split(",")):
            return path.removesuffix(" (deleted)")
    return "/"


def cgroup_of(pid: int, proc: Path = PROC) -> list[Cgroup]:
    """Where a process is, in each hierarchy, the best first; empty if it is gone."""
    process = proc / str(pid)
    if not (process / "cgroup").exists():
        return []
    places = (Cgroup(_below(each.mount, own_path(process, each.kind))) for each in hierarchies(proc))
    return [each for each in places if each.folder.is_dir()]


def _below(mount: Path, path: str) -> Path:
    return mount / path.lstrip("/")


def _mounts(proc: Path) -> dict[str, Path]:
    try:
        lines = (proc / "self/mountinfo").read_text().splitlines()
    except OSError:
        return {}
    found: dict[str, Path] = {}
    for line in lines:
        before, _, after = line.partition(" - ")
        kind, _, options = [*after.split(), "", "", ""][:3]
        mount = Path(_OCTAL.sub(lambda match: chr(int(match[1], 8)), before.split()[4]))
        if kind == "cgroup2":
            found.setdefault("2", mount)
        elif kind == "cgroup":
            for option in options.split(","):
                found.setdefault(option, mount)
    return found
