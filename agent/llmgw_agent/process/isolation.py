"""How engines are kept apart from the agent and from each other: as systemd services, in cgroups, or in process groups.

Each way starts an engine in its own home, knows the homes of an owner's engines again in another life of the agent, and starts
writers of logs so that they outlive the agent as engines do. ``choose.py`` says which one a node can have.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from llmgw_agent.errors import AttemptError
from llmgw_agent.process import enter, systemd
from llmgw_agent.process.cgroup import Cgroup
from llmgw_agent.process.home import NOWHERE, SERVICE, Home, engine_name, homes_in, slice_name
from llmgw_agent.process.identity import LOGMON, Identity, Marker, Owner, read_stat
from llmgw_agent.process.spawn import find_program, prefer_as_oom_victim, spawn
from llmgw_base.clock import Clock

#: Also for children that the engine starts at once; the kernel then takes engines before the agent when memory is out.
OOM_SCORE = 300
#: Reading its order is the first thing that the program does which systemd starts.
ORDER_PATIENCE = 10.0
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
        return _spawn_writer(order)

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
        return _spawn_writer(order)

    def homes(self, owner: Owner, shard: str | None = None) -> list[Home]:
        return homes_in(self._base / slice_name(owner), shard)

    def expected(self, owner: Owner, shard: str, attempt: str) -> Home:
        return Home(cgroup=str(self._base / slice_name(owner) / engine_name(shard, attempt)))


class InServices:
    """Each engine as a transient service of systemd.

    Args:
        base: the folder of ``llmgw.slice`` in the cgroup file system.
        orders: a folder in memory where orders with their secrets lie for a moment.
        stop_seconds: what systemd gives an engine between TERM and KILL when the host goes down.
    """

    kind = "systemd"

    def __init__(self, base: Path, orders: Path, stop_seconds: float, clock: Clock) -> None:
        self._base, self._orders, self._stop_seconds, self._clock = base, orders, stop_seconds, clock

    async def start(self, order: Order) -> tuple[Identity, Home]:
        marker = order.marker
        home = self.expected(marker.owner, marker.shard, marker.attempt)
        content = {
            "program": find_program(order.argv[0], order.environment),
            "argv": list(order.argv),
            "environment": order.environment,
            "folder": str(Path.cwd()),
            "output": str(order.pipe),
            "namespaces": {},
        }
        with written(self._orders, marker.attempt, content) as file:
            await systemd.start(
                home.unit,
                [*PYTHON, enter.__file__, "order", str(file)],
                slice_=slice_name(marker.owner),
                description=f"llmgw engine of shard {marker.shard}, epoch {marker.epoch}, attempt {marker.attempt}",
                environment=marker.environment(),
                properties=properties(self._stop_seconds),
            )
            await self._taken(file)
        return await first_process(home, order.boot), home

    async def start_writer(self, order: WriterOrder) -> Identity:
        unit = f"llmgw-log-{order.attempt}-{secrets.token_hex(3)}{SERVICE}"
        await systemd.start(
            unit,
            order.argv,
            slice_=slice_name(order.owner),
            description=f"llmgw log writer of attempt {order.attempt}",
            environment=order.mark,
            properties=["CollectMode=inactive-or-failed"],
        )
        return await first_process(Home(unit), order.boot)

    async def _taken(self, file: Path) -> None:
        """Until the order was read; a service that cannot do that ends, which is noticed as any other end is."""
        deadline = self._clock.monotonic() + ORDER_PATIENCE
        while _exists(file) and self._clock.monotonic() < deadline:
            await self._clock.sleep(0.005)

    def homes(self, owner: Owner, shard: str | None = None) -> list[Home]:
        return homes_in(self._folder(owner), shard)

    def expected(self, owner: Owner, shard: str, attempt: str) -> Home:
        unit = engine_name(shard, attempt) + SERVICE
        return Home(unit, str(self._folder(owner) / unit))

    def _folder(self, owner: Owner) -> Path:
        return self._base / f"{slice_name(owner)}.slice"


def properties(stop_seconds: float) -> list[str]:
    """Of an engine's service.

    Without MemoryMax: pages of weights that are mapped and memory shared between processes count too, so an engine that is well
    would be slowed down or killed. Who runs when is decided before the start.
    """
    return [
        "KillMode=control-group",
        # How it ended stays known until the agent has asked, however long that takes.
        "RemainAfterExit=yes",
        f"TimeoutStopSec={max(1, round(stop_seconds))}",
        "TasksMax=infinity",
        "LimitNOFILE=1048576",
        # Registered memory of RDMA cards and pinned memory of GPUs.
        "LimitMEMLOCK=infinity",
        # Half an engine is of no use to anybody.
        "OOMPolicy=kill",
        f"OOMScoreAdjust={OOM_SCORE}",
    ]


@contextlib.contextmanager
def written(folder: Path, name: str, content: Mapping[str, object]) -> Iterator[Path]:
    """An order as a file that only its owner reads, for as long as the block runs. Raises AttemptError."""
    file = folder / f"{name}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as opened:
            opened.write(json.dumps(content).encode())
    except OSError as error:
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)
        raise AttemptError(f"{file} cannot be written: {error.strerror}; free {folder} or correct its permissions") from error
    try:
        yield file
    finally:
        file.unlink(missing_ok=True)


async def first_process(home: Home, boot: str) -> Identity:
    """The first process of a service that was just started; one of the past if it has ended. Raises SystemdError."""
    found = await systemd.show(home.unit)
    stat = read_stat(found.main_pid) if found.alive else None
    return Identity(found.main_pid, stat.start_ticks if stat is not None else 0, boot)


def _exists(file: Path) -> bool:
    return file.exists()


def count_memory(folder: Path) -> None:
    """Lets the kernel count what runs out of memory below the folder, where it can; best effort."""
    try:
        (folder / "cgroup.subtree_control").write_text("+memory")
    except OSError:
        return


def _spawn_writer(order: WriterOrder) -> Identity:
    null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    try:
        return spawn(order.argv, order.environment, null, order.boot)
    finally:
        os.close(null)
