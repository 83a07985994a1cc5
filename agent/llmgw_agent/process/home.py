"""Where an engine lives: its systemd unit, its cgroup, or neither. Names tell owner, shard and attempt, also to people.

``…/llmgw-<owner>/llmgw-engine-<shard>-<attempt>``; under systemd the first is a slice and the second a service.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from llmgw_agent.process.cgroup import Cgroup, cgroup_of
from llmgw_agent.process.identity import PROC, Owner

ENGINE = "llmgw-engine-"
SERVICE = ".service"
_LONGEST = 150


@dataclass(frozen=True, slots=True)
class Home:
    """``unit``: of systemd, or empty. ``cgroup``: a folder, or empty where an engine has none of its own."""

    unit: str = ""
    cgroup: str = ""

    @property
    def group(self) -> Cgroup | None:
        return Cgroup(Path(self.cgroup)) if self.cgroup else None

    @property
    def name(self) -> str:
        return Path(self.cgroup).name if self.cgroup else self.unit

    def belongs_to(self, shard: str) -> bool:
        begins = prefix(shard)
        return self.name.startswith(begins) and "-" not in self.name[len(begins) :]


NOWHERE = Home()


def groups(homes: Iterable[Home]) -> list[Cgroup]:
    return [group for home in homes if (group := home.group) is not None]


def slice_name(owner: Owner) -> str:
    """The same for all lives of an agent; other agents on the host have others."""
    words = "\0".join((owner.cluster, owner.node)).encode()
    return f"llmgw-{hashlib.sha256(words).hexdigest()[:8]}"


def engine_name(shard: str, attempt: str) -> str:
    return f"{prefix(shard)}{attempt}"


def prefix(shard: str) -> str:
    """What the names of all attempts of a shard begin with; the rest is the attempt, which has no dash."""
    word = quote(shard, safe="").replace("~", "%7E").replace("%", ":")
    if len(word) > _LONGEST:
        word = f"{word[:_LONGEST]}.{hashlib.sha256(shard.encode()).hexdigest()[:16]}"
    return f"{ENGINE}{word}-"


def homes_in(folder: Path, shard: str | None = None) -> list[Home]:
    """All homes in an owner's folder, or those of one shard. The folder need not exist."""
    try:
        names = sorted(each.name for each in folder.iterdir() if each.name.startswith(ENGINE) and each.is_dir())
    except OSError:
        return []
    homes = [Home(name if name.endswith(SERVICE) else "", str(folder / name)) for name in names]
    return [each for each in homes if shard is None or each.belongs_to(shard)]


def lives_at(pid: int, owner: Owner, proc: Path = PROC) -> bool:
    """Whether a process is in the home of one of the owner's engines."""
    name = slice_name(owner)
    for group in cgroup_of(pid, proc):
        parts = group.folder.parts
        if any(part in (name, f"{name}.slice") for part in parts) and any(part.startswith(ENGINE) for part in parts):
            return True
    return False


def home_of(pid: int, attempt: str, proc: Path = PROC) -> Home:
    """Where a process lives that carries the mark of an attempt; NOWHERE if that is no home of an engine."""
    for group in cgroup_of(pid, proc):
        name = group.folder.name
        if name.startswith(ENGINE) and name.removesuffix(SERVICE).endswith(f"-{attempt}"):
            return Home(name if name.endswith(SERVICE) else "", str(group.folder))
    return NOWHERE
