"""Ends every process of a shard and proves that none is left."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from llmgw_agent.errors import SurvivorsError
from llmgw_agent.process.cgroup import Cgroup
from llmgw_agent.process.identity import Identity, boot_id, identify, is_running
from llmgw_agent.process.watch import send_to
from llmgw_base.clock import Clock

Family = Callable[[], set[Identity]]
LOOK_SECONDS = 0.05


async def end_family(
    family: Family, clock: Clock, *, grace: float, kill_wait: float = 10.0, cgroups: Sequence[Cgroup] = ()
) -> None:
    """SIGTERM to all, after ``grace`` seconds SIGKILL to whoever is left, until nobody is, in the cgroups neither.

    The family is looked up again before each signal: a process may fork while it is being ended.

    Raises:
        SurvivorsError: some outlived SIGKILL by ``kill_wait`` seconds.
    """
    look = partial(_everybody, family, cgroups)
    known = await asyncio.to_thread(look)
    if not known and not _populated(cgroups):
        return
    _signal(known, signal.SIGTERM)
    if await _all_gone(known, clock, grace):
        known = await asyncio.to_thread(look)
    deadline = clock.monotonic() + kill_wait
    while True:
        known = {each for each in known if is_running(each, boot_id())} | await asyncio.to_thread(look)
        if not known and not _populated(cgroups):
            return
        if clock.monotonic() >= deadline:
            raise SurvivorsError(tuple(sorted(each.pid for each in known)))
        _signal(known, signal.SIGKILL)
        for each in cgroups:
            each.kill()
        await _all_gone(known, clock, 0.5)
        if not known:
            await clock.sleep(LOOK_SECONDS)


def _everybody(family: Family, cgroups: Sequence[Cgroup]) -> set[Identity]:
    return family().union(*(each.members() for each in cgroups))


def _populated(cgroups: Sequence[Cgroup]) -> bool:
    return any(each.populated for each in cgroups)


async def _all_gone(known: Iterable[Identity], clock: Clock, limit: float) -> bool:
    deadline = clock.monotonic() + limit
    boot = boot_id()
    while any(is_running(each, boot) for each in known):
        if clock.monotonic() >= deadline:
            return False
        await clock.sleep(LOOK_SECONDS)
    return True


def _signal(targets: Iterable[Identity], number: signal.Signals) -> None:
    for target in targets:
        send_signal(target, number)


def send_signal(target: Identity, number: signal.Signals) -> None:
    """Signals exactly this process; never another one that got its number."""
    try:
        fd = os.pidfd_open(target.pid)
    except ProcessLookupError:
        return
    try:
        if target.boot_id == boot_id() and identify(target.pid, target.boot_id) == target:
            send_to(fd, number)
    finally:
        os.close(fd)
