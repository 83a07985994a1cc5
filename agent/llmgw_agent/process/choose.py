"""Finds out, at the agent's start and by trying, how engines can be kept apart on this node."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path

from llmgw_agent.errors import AttemptError
from llmgw_agent.process import enter, systemd
from llmgw_agent.process.cgroup import Cgroup, Hierarchy, hierarchies
from llmgw_agent.process.home import SERVICE
from llmgw_agent.process.isolation import PYTHON, InCgroups, InGroups, Isolation
from llmgw_agent.process.services import InServices, properties, remove_stale, written
from llmgw_base.clock import Clock
from llmgw_base.config import ConfigError

KINDS = ("systemd", "cgroup", "group")
TRY_SECONDS = 20.0
FOLDER = "llmgw"
_SHARED = ("net", "pid", "user")


class UnfitError(Exception):
    """A way that this node does not have; the text says why."""


async def choose(wanted: str, stop_seconds: float, clock: Clock) -> tuple[Isolation, str]:
    """The best way, or with ``wanted`` other than ``auto`` that one; and why it is not a better one, or an empty text.

    Raises:
        ConfigError: the wanted one cannot be had.
    """
    against: list[str] = []
    for kind in KINDS if wanted == "auto" else (wanted,):
        try:
            return await _try(kind, stop_seconds, clock), "; ".join(against)
        except UnfitError as error:
            against.append(f"{kind}: {error}")
    raise ConfigError(
        f"engines.isolation: {wanted} cannot be had on this node: {'; '.join(against)}. Set it to auto, or correct the cause"
    )


async def _try(kind: str, stop_seconds: float, clock: Clock) -> Isolation:
    if kind == "systemd":
        return await _try_services(stop_seconds, clock)
    if kind == "cgroup":
        return await _try_cgroups(hierarchies(), systemd_runs=systemd.RUNNING.exists())
    return InGroups()


async def _try_services(stop_seconds: float, clock: Clock) -> InServices:
    if not systemd.RUNNING.exists():
        raise UnfitError("systemd does not run here")
    if os.geteuid() != 0:
        raise UnfitError("the agent is not root, so it may not start services")
    orders = Path(os.environ.get("RUNTIME_DIRECTORY", "/run/llmgw").split(":")[0]) / "orders"
    remove_stale(orders)
    unit = f"llmgw-try-{secrets.token_hex(6)}{SERVICE}"
    try:
        return InServices(await _try_unit(unit, orders, stop_seconds, clock), orders, stop_seconds, clock)
    except AttemptError as error:
        raise UnfitError(str(error)) from error
    finally:
        await systemd.forget(unit)


async def _try_unit(unit: str, orders: Path, stop_seconds: float, clock: Clock) -> Path:
    """Starts a service just as an engine's, which ends at once. The folder of ``llmgw.slice``.

    Raises UnfitError, AttemptError.
    """
    content = {
        "program": _true(),
        "argv": ["true"],
        "environment": {},
        "folder": str(Path.cwd()),
        "output": os.devnull,
        "namespaces": {name: os.readlink(f"/proc/self/ns/{name}") for name in _SHARED},  # noqa: PTH115 - not a path
    }
    with written(orders, unit, content) as file:
        argv = [*PYTHON, enter.__file__, "order", str(file)]
        await systemd.start(
            unit,
            argv,
            slice_=FOLDER,
            description="llmgw tries whether it can start services",
            environment={},
            properties=properties(stop_seconds),
        )
        found = await systemd.ended(unit, clock, TRY_SECONDS)
    if found.status == enter.ELSEWHERE:
        raise UnfitError(f"the agent has another {', '.join(_SHARED[:-1])} or {_SHARED[-1]} namespace than systemd's services")
    if found.status != 0:
        raise UnfitError(f"a service was started to try it and ended with {found.status}; look at `journalctl -u {unit}`")
    for hierarchy in hierarchies():
        if (base := hierarchy.mount / f"{FOLDER}.slice").is_dir():
            return base
    raise UnfitError("llmgw.slice is in no cgroup file system that the agent sees")


async def _try_cgroups(known: Sequence[Hierarchy], *, systemd_runs: bool) -> InCgroups:
    against = []
    for hierarchy in known:
        if hierarchy.kind == "name=systemd" and systemd_runs:
            continue
        # At the top first: there a service manager that ends the agent's own cgroup does not end engines with it.
        for parent in dict.fromkeys((hierarchy.mount, hierarchy.own)):
            base = parent / FOLDER
            if (objection := await _objection(base)) is None:
                return InCgroups(base)
            against.append(f"{base}: {objection}")
    raise UnfitError(", ".join(against) or "no cgroup file system is mounted")


async def _objection(base: Path) -> str | None:
    """Why no cgroup can be made and entered below the folder; None if one can."""
    probe = Cgroup(base / f"try-{secrets.token_hex(6)}")
    try:
        probe.folder.mkdir(parents=True)
    except OSError as error:
        return error.strerror or str(error)
    argv = [*PYTHON, enter.__file__, "cgroup", str(probe.folder), _true(), "true"]
    null = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*argv, stdin=null, stdout=null, stderr=asyncio.subprocess.PIPE)
    try:
        async with asyncio.timeout(TRY_SECONDS):
            _, said = await process.communicate()
    except TimeoutError:
        return "a process did not enter it in time"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        probe.remove()
    return None if process.returncode == 0 else said.decode(errors="replace").strip().rpartition(": ")[2]


def _true() -> str:
    found = shutil.which("true")
    if found is None:
        raise UnfitError("program true is not on PATH")
    return found
