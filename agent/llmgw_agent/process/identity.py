"""Who a process is. A pid alone says nothing: pids are used again, and a reboot starts them anew.

An :class:`Identity` is a pid with its start time (clock ticks since boot) in one boot; no two processes share it. A
:class:`Marker` is what the agent wrote into an engine's environment; children inherit it, also when they leave the session.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

SHARD = "LLMGW_SHARD"
EPOCH = "LLMGW_EPOCH"
NODE = "LLMGW_NODE"
CLUSTER = "LLMGW_CLUSTER"
ATTEMPT = "LLMGW_ATTEMPT"
PORT = "LLMGW_PORT"
WISH = "LLMGW_WISH"
LOGMON = "LLMGW_LOGMON"

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Identity:
    pid: int
    start_ticks: int
    boot_id: str


@dataclass(frozen=True, slots=True)
class Owner:
    """Which agent a process belongs to. One host may carry nodes of several clusters; ``cluster`` is a cluster's id."""

    cluster: str
    node: str


@dataclass(frozen=True, slots=True)
class Marker:
    """The agent's marks in a process's environment; ``attempt`` is unique to one start of an engine."""

    owner: Owner
    shard: str
    epoch: int
    attempt: str
    port: int
    wish: str

    def environment(self) -> dict[str, str]:
        return {
            CLUSTER: self.owner.cluster,
            NODE: self.owner.node,
            SHARD: self.shard,
            EPOCH: str(self.epoch),
            ATTEMPT: self.attempt,
            PORT: str(self.port),
            WISH: self.wish,
        }

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Marker | None:
        """None if the marks are missing or not ours."""
        try:
            return cls(
                owner=Owner(environment[CLUSTER], environment[NODE]),
                shard=environment[SHARD],
                epoch=int(environment[EPOCH]),
                attempt=environment[ATTEMPT],
                port=int(environment[PORT]),
                wish=environment[WISH],
            )
        except (KeyError, ValueError):
            return None


@dataclass(frozen=True, slots=True)
class Stat:
    """From ``/proc/<pid>/stat``, see proc_pid_stat(5)."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    start_ticks: int

    @property
    def gone(self) -> bool:
        """A zombie holds no memory, port or GPU any more; it only waits for its parent to look."""
        return self.state in "ZXx"


def boot_id() -> str:
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def read_stat(pid: int, proc: Path = PROC) -> Stat | None:
    """None if there is no such process."""
    try:
        text = (proc / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    # The second field is the program's name in parentheses and may itself contain blanks and parentheses.
    fields = text[text.rfind(b")") + 2 :].split()
    if len(fields) < 20:
        return None
    return Stat(pid, fields[0].decode(), int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))


def identify(pid: int, boot: str) -> Identity | None:
    """The identity of a process that runs now; None if there is none or it is a zombie."""
    stat = read_stat(pid)
    return None if stat is None or stat.gone else Identity(pid, stat.start_ticks, boot)


def is_running(identity: Identity, boot: str) -> bool:
    """Whether exactly this process still runs."""
    return identity.boot_id == boot and identify(identity.pid, boot) == identity


def read_environment(pid: int, proc: Path = PROC) -> dict[str, str]:
    """What the process was started with; empty if it may not be read or the program overwrote it."""
    try:
        raw = (proc / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    pairs = (part.partition(b"=") for part in raw.split(b"\0") if b"=" in part)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def peak_rss(pid: int, proc: Path = PROC) -> int:
    """The most memory in bytes that the process has had resident; 0 if it is gone."""
    try:
        for line in (proc / str(pid) / "status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        return 0
    return 0


def pids(proc: Path = PROC) -> Iterator[int]:
    for name in os.listdir(proc):  # noqa: PTH208 - a thousand Path objects per look are not worth it
        if name.isdigit():
            yield int(name)
