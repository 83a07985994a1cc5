"""Engines as transient services of systemd: neither the agent's end nor that of its own service reaches them."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from llmgw_agent.errors import AttemptError
from llmgw_agent.process import enter, systemd
from llmgw_agent.process.cgroup import Cgroup
from llmgw_agent.process.home import SERVICE, Home, engine_name, homes_in, slice_name
from llmgw_agent.process.identity import Identity, Marker, Owner, read_stat
from llmgw_agent.process.isolation import OOM_SCORE, PYTHON, Order, WriterOrder, spawn_writer
from llmgw_agent.process.spawn import find_program
from llmgw_base.clock import Clock

#: Reading its order is the first thing that the program does which systemd starts.
ORDER_PATIENCE = 30.0
#: No order waits so long to be read.
STALE_SECONDS = 300.0
logger = logging.getLogger(__name__)


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
            try:
                await self._start(home, marker, file)
                return await first_process(home.unit, order.boot), home
            except AttemptError:
                # systemd may have started it nevertheless, or be about to.
                await end_service(home)
                raise

    async def _start(self, home: Home, marker: Marker, order: Path) -> None:
        await systemd.start(
            home.unit,
            [*PYTHON, enter.__file__, "order", str(order)],
            slice_=slice_name(marker.owner),
            description=f"llmgw engine of shard {marker.shard}, epoch {marker.epoch}, attempt {marker.attempt}",
            environment=marker.environment(),
            properties=properties(self._stop_seconds),
        )
        await self._taken(home.unit, order)

    async def start_writer(self, order: WriterOrder) -> Identity:
        unit = f"llmgw-log-{order.attempt}-{secrets.token_hex(3)}{SERVICE}"
        try:
            await systemd.start(
                unit,
                order.argv,
                slice_=slice_name(order.owner),
                description=f"llmgw log writer of attempt {order.attempt}",
                environment=order.mark,
                properties=["CollectMode=inactive-or-failed"],
            )
            return await first_process(unit, order.boot)
        except AttemptError as error:
            # An engine whose output nobody reads would stand still.
            fields = {"attempt": order.attempt, "cause": str(error)}
            logger.warning("the log writer is no service; it will not outlive the agent's", extra={"fields": fields})
            return spawn_writer(order)

    async def _taken(self, unit: str, file: Path) -> None:
        """Until the order was read. Raises SystemdError."""
        deadline = self._clock.monotonic() + ORDER_PATIENCE
        while _exists(file):
            if self._clock.monotonic() >= deadline:
                raise systemd.SystemdError(
                    f"service {unit} did not begin within {ORDER_PATIENCE:g} s: look at `journalctl -u {unit}`, and at what "
                    "loads this host"
                )
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


async def end_service(home: Home) -> None:
    """Whatever has become of it; what is in its cgroup is gone when this returns, or about to be."""
    Cgroup(Path(home.cgroup)).kill()
    await systemd.forget(home.unit)


async def first_process(unit: str, boot: str) -> Identity:
    """The first process of a service that was just started; one of the past if it has ended. Raises SystemdError."""
    found = await systemd.show(unit)
    if not found.main_pid:
        raise systemd.SystemdError(f"service {unit} was gone at once; look at `journalctl -u {unit}`")
    stat = read_stat(found.main_pid) if found.alive else None
    return Identity(found.main_pid, stat.start_ticks if stat is not None else 0, boot)


def _exists(file: Path) -> bool:
    return file.exists()


def remove_stale(orders: Path) -> None:
    """Removes orders of agents that were killed before anybody read them."""
    with contextlib.suppress(OSError):
        for file in orders.glob("*.json"):
            if time.time() - file.stat().st_mtime > STALE_SECONDS:
                file.unlink()
