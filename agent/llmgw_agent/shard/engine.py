"""One running engine: its first process, its output, and the certainty that all of it can be ended."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from functools import partial

from llmgw_agent.process.end import end_family
from llmgw_agent.process.identity import Identity, Marker
from llmgw_agent.process.output import Output
from llmgw_agent.process.scan import find_family
from llmgw_agent.process.spawn import clean_environment, prefer_as_oom_victim, spawn
from llmgw_agent.process.watch import Watch
from llmgw_base.clock import Clock


class Engine:
    """Owned by one worker. Make it with :meth:`start` or :meth:`adopt`, leave it with :meth:`end` or :meth:`release`."""

    def __init__(self, watch: Watch, output: Output, marker: Marker) -> None:
        self._watch, self._output, self._marker = watch, output, marker
        self._keeper = asyncio.create_task(output.keep(), name=f"output-{marker.shard}")

    @classmethod
    def start(
        cls, argv: Sequence[str], environment: Mapping[str, str], marker: Marker, output: Output, boot: str, headline: str
    ) -> Engine:
        """``headline`` becomes the first line in the log. Raises RejectedError, AttemptError."""
        fd = output.open()
        try:
            os.write(fd, headline.encode(errors="replace")[:4000] + b"\n")
            identity = spawn(argv, clean_environment(os.environ, {**environment, **marker.environment()}), fd, boot)
        finally:
            os.close(fd)
        prefer_as_oom_victim(identity.pid)
        watch = Watch.open(identity)
        # Our own child cannot vanish before we have looked at its end.
        assert watch is not None
        return cls(watch, output, marker)

    @classmethod
    def adopt(cls, identity: Identity, marker: Marker, output: Output, writer: Identity | None) -> Engine | None:
        """None if that process runs no more. ``writer``: the log writer, if it still runs."""
        watch = Watch.open(identity)
        if watch is None:
            return None
        output.adopt(writer)
        return cls(watch, output, marker)

    @property
    def identity(self) -> Identity:
        return self._watch.identity

    @property
    def pid(self) -> int:
        return self._watch.identity.pid

    @property
    def ended(self) -> bool:
        return self._watch.ended

    async def wait(self) -> int | None:
        """Returns at the end of the first process: exit code, minus signal, or None if unknown."""
        return await self._watch.wait()

    async def end(self, clock: Clock, grace: float) -> None:
        """Ends every process of the shard, whatever became of the first one, and waits for the last line of the log.

        Raises:
            SurvivorsError: processes outlived SIGKILL; call it again later.
        """
        await end_family(partial(find_family, self.identity, self._marker.owner, self._marker.shard), clock, grace=grace)
        await self._watch.wait()
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
