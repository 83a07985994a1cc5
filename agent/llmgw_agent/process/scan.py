"""Finds the agent's processes among all processes of the host."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from llmgw_agent.process.identity import (
    CLUSTER,
    LOGMON,
    NODE,
    PROC,
    Identity,
    Marker,
    Owner,
    Stat,
    boot_id,
    pids,
    read_environment,
    read_stat,
)

_PIPE = re.compile(r"([^/]+)\.pipe(?: \(deleted\))?")


@dataclass(frozen=True, slots=True)
class Marked:
    """A living process that carries our marker. ``leader``: it leads its session, as the engine's first process does."""

    identity: Identity
    marker: Marker
    leader: bool


def find_marked(node: str, cluster: str | None = None) -> list[Marked]:
    """All living processes of the node's engines, whatever became of their parents. ``cluster`` None: of any cluster."""
    boot = boot_id()
    found = []
    for pid in pids():
        environment = _own_environment(pid)
        if environment.get(NODE) != node or cluster not in (None, environment.get(CLUSTER)):
            continue
        marker, stat = Marker.read(environment), read_stat(pid)
        if marker is not None and stat is not None and not stat.gone:
            found.append(Marked(Identity(pid, stat.start_ticks, boot), marker, leader=stat.session == pid))
    return found


def find_logmons(node: str) -> dict[str, Identity]:
    """Living log writers of this node, by the attempt whose log they write."""
    boot = boot_id()
    found = {}
    for pid in pids():
        mark = _own_environment(pid).get(LOGMON, "")
        owner, separator, attempt = mark.rpartition("/")
        stat = read_stat(pid) if separator and owner == node else None
        if stat is not None and not stat.gone:
            found[attempt] = Identity(pid, stat.start_ticks, boot)
    return found


def find_family(
    leader: Identity | None, owner: Owner, shard: str, attempts: Collection[str] | None = None, logs: Path | None = None
) -> set[Identity]:
    """Every living process of a shard: those that carry its marker or write to its log, and, while the leader lives, its
    session and descendants.

    A process that merely has a number that we once knew is never in it.

    Args:
        attempts: only marks and pipes of these count; None: of all.
        logs: the folder with the pipes to the shard's log. A program that sets its title, as vLLM's workers do, may overwrite
            its environment and the mark in it.
    """
    boot = boot_id()
    stats = {stat.pid: stat for pid in pids() if (stat := read_stat(pid)) is not None and not stat.gone}
    family = {pid for pid in stats if _marked(pid, owner, shard, attempts)}
    if logs is not None:
        folder = os.path.realpath(logs)
        family |= {pid for pid in stats if _writes(pid, folder, attempts)}
    own = stats.get(leader.pid) if leader is not None and leader.boot_id == boot else None
    if leader is not None and own is not None and own.start_ticks == leader.start_ticks:
        family |= {stat.pid for stat in stats.values() if stat.session == leader.pid}
        family |= _descendants(leader.pid, stats.values())
    return {Identity(pid, stats[pid].start_ticks, boot) for pid in family}


def _own_environment(pid: int) -> dict[str, str]:
    """Empty for processes of other users: anybody may write our marks into the environment of what is theirs."""
    return read_environment(pid) if _is_own(pid) else {}


def _is_own(pid: int) -> bool:
    try:
        return (PROC / str(pid)).stat().st_uid == os.geteuid()
    except OSError:
        return False


def _marked(pid: int, owner: Owner, shard: str, attempts: Collection[str] | None) -> bool:
    marker = Marker.read(_own_environment(pid))
    if marker is None or marker.owner != owner or marker.shard != shard:
        return False
    return attempts is None or marker.attempt in attempts


def _writes(pid: int, folder: str, attempts: Collection[str] | None) -> bool:
    """Whether its stdout or stderr is the pipe of an attempt. Log writers have theirs elsewhere."""
    if not _is_own(pid):
        return False
    for number in (1, 2):
        try:
            target = str((PROC / str(pid) / "fd" / str(number)).readlink())
        except OSError:
            continue
        found = _PIPE.fullmatch(target.removeprefix(f"{folder}/"))
        if found is not None and (attempts is None or found[1] in attempts):
            return True
    return False


def _descendants(root: int, stats: Iterable[Stat]) -> set[int]:
    children: dict[int, list[int]] = {}
    for stat in stats:
        children.setdefault(stat.parent, []).append(stat.pid)
    found = {root}
    waiting = [root]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found
