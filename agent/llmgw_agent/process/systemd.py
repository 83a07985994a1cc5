"""Transient services of systemd, by its own programs ``systemd-run`` and ``systemctl``.

They talk to systemd over its private socket, so no D-Bus daemon and no library is needed. A start takes some 40 ms, a question
20; neither is needed while an engine runs.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from llmgw_agent.errors import AttemptError
from llmgw_base.clock import Clock

RUNNING = Path("/run/systemd/system")
PATIENCE = 30.0
#: Values of ``si_code`` in ExecMainCode, see waitid(2).
_EXITED, _KILLED, _DUMPED = 1, 2, 3


class SystemdError(AttemptError):
    """systemd did not do what it was asked; the text says what it said."""


@dataclass(frozen=True, slots=True)
class Unit:
    """What systemd knows of a service. ``main_pid``: also of one that has ended; 0 if there is no such unit."""

    name: str
    main_pid: int
    alive: bool
    status: int | None
    """Exit code, or minus the signal's number; None while it runs, or if it is not known."""
    oom: bool
    cgroup: str


async def call(*argv: str, patience: float = PATIENCE) -> str:
    """What the program says.

    Raises:
        SystemdError: it failed, or did not answer in time.
    """
    program = shutil.which(argv[0])
    if program is None:
        raise SystemdError(f"program {argv[0]} is not on this node; install systemd's programs")
    environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "SYSTEMD_PAGER": "", "SYSTEMD_COLORS": "0"}
    process = await asyncio.create_subprocess_exec(
        program,
        *argv[1:],
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=environment,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(patience):
            said, _ = await process.communicate()
    except TimeoutError as error:
        raise SystemdError(f"{argv[0]} got no answer from systemd within {patience:g} s; look at `systemctl status`") from error
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    text = said.decode(errors="replace").strip()
    if process.returncode != 0:
        raise SystemdError(f"{argv[0]} failed: {text or f'exit code {process.returncode}'}")
    return text


async def start(
    unit: str, argv: Sequence[str], *, slice_: str, description: str, environment: dict[str, str], properties: Sequence[str]
) -> None:
    """Returns when the program was executed; what becomes of it then is another question. Raises SystemdError."""
    options = [f"--unit={unit}", f"--slice={slice_}.slice", f"--description={description}", "--service-type=exec", "--quiet"]
    options += [f"--property={each}" for each in properties]
    options += [f"--setenv={name}={value}" for name, value in environment.items()]
    await call("systemd-run", *options, "--", *(each.replace("$", "$$") for each in argv))


async def show(unit: str) -> Unit:
    """Raises SystemdError only if systemd does not answer; a unit that it does not know has no pid and no status."""
    names = "MainPID,ExecMainPID,ExecMainCode,ExecMainStatus,Result,ControlGroup"
    lines = (line.partition("=") for line in (await call("systemctl", "show", f"--property={names}", unit)).splitlines())
    facts = {name: value for name, _, value in lines}
    code, number = _number(facts.get("ExecMainCode")), _number(facts.get("ExecMainStatus"))
    main, last = _number(facts.get("MainPID")), _number(facts.get("ExecMainPID"))
    status = {_EXITED: number, _KILLED: -number, _DUMPED: -number}.get(code)
    return Unit(
        unit,
        main or last,
        alive=main != 0,
        status=status,
        oom=facts.get("Result") == "oom-kill",
        cgroup=facts.get("ControlGroup", ""),
    )


async def ended(unit: str, clock: Clock, patience: float = 3.0) -> Unit:
    """Of a service whose first process is known to be dead: systemd may need a moment to have seen it. Raises SystemdError."""
    pause, waited = 0.02, 0.0
    while True:
        found = await show(unit)
        if (found.status is not None and not found.alive) or not found.main_pid or waited >= patience:
            return found
        await clock.sleep(pause)
        waited, pause = waited + pause, min(0.5, pause * 2)


async def forget(unit: str) -> None:
    """Stops what is left of it and lets systemd forget how it ended. Does nothing if there is no such unit."""
    with suppress(SystemdError):
        await call("systemctl", "stop", unit)
    with suppress(SystemdError):
        await call("systemctl", "reset-failed", unit)


def _number(text: str | None) -> int:
    try:
        return int(text or 0)
    except ValueError:
        return 0
