"""Ends every process of a shard and proves that none is left."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterable

from llmgw_agent.errors import SurvivorsError
from llmgw_agent.process.identity import Identity, boot_id, identify, is_running
from llmgw_agent.process.watch import send_to
from llmgw_base.clock import Clock

Family = Callable[[], set[Identity]]
LOOK_SECONDS = 0.05


async def end_family(family: Family, clock: Clock, *, grace: float, kill_wait: float = 10.0) -> None:
    """SIGTERM to all, after ``grace`` seconds SIGKILL to whoever is left, until nobody is.

    The family is looked up again before each signal: a process may fork while it is being ended.

    Raises:
        SurvivorsError: some outlived SIGKILL by ``kill_wait`` seconds.
    """
    known = await asyncio.to_thread(family)
    if not known:
        return
    _signal(known, signal.SIGTERM)
    if await _all_gone(known, clock, grace):
        known = await asyncio.to_thread(family)
    deadline = clock.monotonic() + kill_wait
    while True:
        known = {each for each in known if is_running(each, boot_id())} | await asyncio.to_thread(family)
        if not known:
            return
        if clock.monotonic() >= deadline:
            raise SurvivorsError(tuple(sorted(each.pid for each in known)))
        _signal(known, signal.SIGKILL)
        await _all_gone(known, clock, 0.5)


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
