"""One running engine: its first process, its output, its home, and the certainty that all of it can be ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from llmgw_agent.errors import AgentError
from llmgw_agent.process import systemd
from llmgw_agent.process.end import end_family
from llmgw_agent.process.home import Home, groups
from llmgw_agent.process.identity import Identity, Marker, Owner
from llmgw_agent.process.isolation import Isolation, Order
from llmgw_agent.process.output import Output
from llmgw_agent.process.scan import find_family
from llmgw_agent.process.spawn import clean_environment
from llmgw_agent.process.watch import Watch
from llmgw_base.clock import Clock

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an engine ended. ``status``: exit code, or minus the signal's number, or None if nobody can know it.

    ``oom``: the kernel killed a process of it because memory ran out; False too where the kernel does not count that.
    """

    status: int | None = None
    oom: bool = False


class Engine:
    """Owned by one worker. Make it with :meth:`start` or :meth:`adopt`, leave it with :meth:`end` or :meth:`release`."""

    def __init__(self, watch: Watch, output: Output, marker: Marker, home: Home) -> None:
        self._watch, self._output, self._marker = watch, output, marker
        self.home = home
        self._keeper = asyncio.create_task(output.keep(), name=f"output-{marker.shard}")

    @classmethod
    async def start(
        cls,
        isolation: Isolation,
        argv: Sequence[str],
        environment: Mapping[str, str],
        marker: Marker,
        output: Output,
        boot: str,
        headline: str,
    ) -> Engine:
        """``headline`` becomes the first line in the log. Must not be cancelled. Raises RejectedError, AttemptError."""
        fd = await output.open()
        try:
            os.write(fd, headline.encode(errors="replace")[:4000] + b"\n")
            whole = clean_environment(os.environ, {**environment, **marker.environment()})
            identity, home = await isolation.start(Order(marker, argv, whole, fd, output.pipe, boot))
        except BaseException:
            output.release()
            raise
        finally:
            os.close(fd)
        # It may have ended before it could be looked at.
        return cls(Watch.open(identity) or Watch(identity, None), output, marker, home)

    @classmethod
    async def adopt(
        cls, identity: Identity, marker: Marker, output: Output, writer: Identity | None, home: Home
    ) -> Engine | None:
        """None if that process runs no more. ``writer``: the log writer, if it still runs."""
        watch = Watch.open(identity)
        if watch is None:
            return None
        await output.adopt(writer)
        return cls(watch, output, marker, home)

    @property
    def identity(self) -> Identity:
        return self._watch.identity

    @property
    def pid(self) -> int:
        return self._watch.identity.pid

    @property
    def ended(self) -> bool:
        return self._watch.ended

    async def wait(self) -> None:
        """Returns at the end of the first process."""
        await self._watch.wait()

    async def outcome(self, clock: Clock) -> Outcome:
        """How it ended; before that, waits for its end. To be asked before :meth:`end`, which forgets it."""
        status = await self._watch.wait()
        return await outcome_of(self.home, status, clock)

    async def end(self, clock: Clock, grace: float) -> None:
        """Ends every process of the shard, whatever became of the first one, and waits for the last line of the log.

        Raises:
            SurvivorsError: processes outlived SIGKILL; call it again later.
        """
        family = partial(find_family, self.identity, self._marker.owner, self._marker.shard, logs=self._output.pipe.parent)
        await end_family(family, clock, grace=grace, cgroups=groups([self.home]))
        await self._watch.wait()
        await forget(self.home)
        await self._stop_keeper()
        await self._output.finish(clock)
        self._output.release()

    async def release(self) -> None:
        """Leaves everything running and stops watching it."""
        await self._stop_keeper()
        self._watch.close()
        self._output.release()

    async def _stop_keeper(self) -> None:
        self._keeper.cancel()
        await asyncio.gather(self._keeper, return_exceptions=True)


async def outcome_of(home: Home, status: int | None, clock: Clock) -> Outcome:
    """What the home tells of the end of a process that has ended; ``status`` if the agent knows it itself."""
    oom = any(group.oom_kills for group in groups([home]))
    if home.unit:
        with contextlib.suppress(systemd.SystemdError):
            unit = await systemd.ended(home.unit, clock)
            return Outcome(unit.status if status is None else status, oom or unit.oom)
    return Outcome(status, oom)


async def end_leftovers(
    owner: Owner,
    shard: str,
    homes: Sequence[Home],
    logs: Path,
    clock: Clock,
    grace: float,
    attempts: Collection[str] | None = None,
) -> None:
    """Ends whatever of the shard is left although no engine of it is known: by its mark, by what it writes to in ``logs`` (the
    folder of the shard's log), and in these homes.

    ``attempts``: only of these, where another one may begin meanwhile; None: of all.

    Raises:
        SurvivorsError: processes outlived SIGKILL; call it again later.
    """
    family = partial(find_family, None, owner, shard, attempts, logs)
    await end_family(family, clock, grace=grace, cgroups=groups(homes))
    for home in homes:
        await forget(home)


async def end_home(home: Home, clock: Clock, grace: float) -> None:
    """Ends everybody who lives there. Raises SurvivorsError."""
    await end_family(set, clock, grace=grace, cgroups=groups([home]))
    await forget(home)


async def forget(home: Home) -> None:
    """Removes a home in which nobody lives any more."""
    if home.unit:
        await systemd.forget(home.unit)
    for group in groups([home]):
        if group.remove() and not home.unit:
            # The owner's folder, if that was the last one in it.
            with contextlib.suppress(OSError):
                os.rmdir(group.folder.parent)  # noqa: PTH106 - no disk: the kernel answers at once


async def uninterrupted(work: Coroutine[Any, Any, T], keep: Callable[[T], None]) -> None:
    """Runs it to its end and gives its result to ``keep``, also when the caller is cancelled meanwhile (which it then is).

    For steps that must not leave a process behind that nobody knows.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is None:
        keep(task.result())
        return
    with contextlib.suppress(AgentError):
        keep(task.result())
    raise cancelled
