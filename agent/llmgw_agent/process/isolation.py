"""How engines are kept apart from the agent and each other: in process groups, in cgroups, or (``services.py``) by systemd.

Each way starts an engine in its own home, knows the homes of an owner's engines again in another life of the agent, and starts
writers of logs so that they outlive the agent as engines do. ``choose.py`` says which one a node can have.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from llmgw_agent.errors import AttemptError
from llmgw_agent.process import enter
from llmgw_agent.process.cgroup import Cgroup
from llmgw_agent.process.home import NOWHERE, Home, engine_name, homes_in, slice_name
from llmgw_agent.process.identity import LOGMON, Identity, Marker, Owner
from llmgw_agent.process.spawn import find_program, prefer_as_oom_victim, spawn

#: Also for children that the engine starts at once; the kernel then takes engines before the agent when memory is out.
OOM_SCORE = 300
PYTHON = (sys.executable, "-I", "-S")


@dataclass(frozen=True, slots=True)
class Order:
    """An engine to be started. ``environment`` is all that it gets; ``output`` is open on ``pipe``."""

    marker: Marker
    argv: Sequence[str]
    environment: dict[str, str]
    output: int
    pipe: Path
    boot: str


@dataclass(frozen=True, slots=True)
class WriterOrder:
    """A writer of an engine's log to be started; ``mark`` is the value of its mark in the environment."""

    owner: Owner
    attempt: str
    argv: Sequence[str]
    environment: dict[str, str]
    boot: str

    @property
    def mark(self) -> dict[str, str]:
        return {LOGMON: self.environment[LOGMON]}


class Isolation(Protocol):
    kind: str

    async def start(self, order: Order) -> tuple[Identity, Home]:
        """Returns when it runs, perhaps when it has ended already. Must not be cancelled.

        Raises:
            RejectedError: there is no such program, or it may not be executed.
            AttemptError: it cannot be started now.
        """
        ...

    async def start_writer(self, order: WriterOrder) -> Identity:
        """Raises AttemptError."""
        ...

    def homes(self, owner: Owner, shard: str | None = None) -> list[Home]:
        """Where something of the owner's engines may still be, or of one shard's."""
        ...

    def expected(self, owner: Owner, shard: str, attempt: str) -> Home:
        """Where that attempt was started, if it was."""
        ...


class InGroups:
    """Each engine in a session of its own; its processes are found by their marks and their ancestors."""

    kind = "group"

    async def start(self, order: Order) -> tuple[Identity, Home]:
        who = spawn(order.argv, order.environment, order.output, order.boot)
        prefer_as_oom_victim(who.pid)
        return who, NOWHERE

    async def start_writer(self, order: WriterOrder) -> Identity:
        return spawn_writer(order)

    def homes(self, owner: Owner, shard: str | None = None) -> list[Home]:
        return []

    def expected(self, owner: Owner, shard: str, attempt: str) -> Home:
        return NOWHERE


class InCgroups:
    """Each engine in a cgroup below ``base``, a folder of the agent's in a cgroup file system."""

    kind = "cgroup"

    def __init__(self, base: Path) -> None:
        self._base = base

    async def start(self, order: Order) -> tuple[Identity, Home]:
        marker = order.marker
        home = self.expected(marker.owner, marker.shard, marker.attempt)
        program = find_program(order.argv[0], order.environment)
        folder = Path(home.cgroup)
        try:
            os.makedirs(folder, exist_ok=True)  # noqa: PTH103 - no disk: the kernel answers at once
        except OSError as error:
            raise AttemptError(f"cgroup {folder} cannot be made: {error.strerror}; look at engines.isolation") from error
        for each in (self._base, folder.parent):
            count_memory(each)
        argv = [*PYTHON, enter.__file__, "cgroup", home.cgroup, program, *order.argv]
        try:
            who = spawn(argv, order.environment, order.output, order.boot)
        except BaseException:
            Cgroup(folder).remove()
            raise
        prefer_as_oom_victim(who.pid)
        return who, home

    async def start_writer(self, order: WriterOrder) -> Identity:
        return spawn_writer(order)

    def homes(self, owner: Owner, shard: str | None = None) -> list[Home]:
        return homes_in(self._base / slice_name(owner), shard)

    def expected(self, owner: Owner, shard: str, attempt: str) -> Home:
        return Home(cgroup=str(self._base / slice_name(owner) / engine_name(shard, attempt)))


def count_memory(folder: Path) -> None:
    """Lets the kernel count what runs out of memory below the folder, where it can; best effort."""
    try:
        (folder / "cgroup.subtree_control").write_text("+memory")
    except OSError:
        return


def spawn_writer(order: WriterOrder) -> Identity:
    """In a session of its own, in the agent's cgroup."""
    null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    try:
        return spawn(order.argv, order.environment, null, order.boot)
    finally:
        os.close(null)
