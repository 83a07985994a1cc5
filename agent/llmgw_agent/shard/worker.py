"""One worker owns one shard. The latest wish wins, an older epoch is refused, an ended epoch never comes back.

The worker's task alternates between two things: pursuing the present wish, which ends only when it is interrupted or
rejected; and doing what a new wish or its withdrawal asks for, which only the agent's own end interrupts. Decisions are made
elsewhere: ``decide.py`` (what a wish means), ``restart.py`` (when to try again), ``exits.py`` (why an engine ended),
``machine.py`` (what may follow what).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from llmgw_agent.errors import NotNowError
from llmgw_agent.process.identity import Identity
from llmgw_agent.process.scan import Marked
from llmgw_agent.shard.context import Context
from llmgw_agent.shard.decide import Keep, Refuse, Replace, Verdict, weigh
from llmgw_agent.shard.record import shard_record
from llmgw_agent.shard.runner import Runner
from llmgw_agent.shard.state import SavedShard
from llmgw_base.secrets import engine_key
from llmgw_proto import keyspace
from llmgw_proto.records import AssignmentRecord, ShardState

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Legacy:
    """What an earlier life of the agent left of the shard."""

    saved: SavedShard
    marked: Sequence[Marked] = ()
    writers: dict[str, Identity] = field(default_factory=dict)


class Worker:
    def __init__(self, context: Context, shard: str, legacy: Legacy | None = None) -> None:
        self._context, self._shard = context, shard
        self._legacy = legacy
        self._wish: AssignmentRecord | None = legacy.saved.assignment if legacy is not None else None
        self._secret = ""
        self._runner: Runner | None = None
        self._pursuing = False
        self._restart: float | None = None
        """Wished for by an operator: seconds to drain before it."""
        self._changed = asyncio.Event()
        self.closed = False
        """True once nothing of the shard is left; a later wish needs a new worker."""
        self.recovered = asyncio.Event()
        """Set once it is known what runs."""

    # --- the inbox: called at any time, without waiting ---------------------------------------------------------------

    def wish(self, assignment: AssignmentRecord, cluster_secret: str) -> None:
        self._secret = cluster_secret
        if assignment == self._wish:
            return
        self._wish = assignment
        runner = self._runner
        if runner is not None and self._pursuing and not self._disturbs(runner, assignment):
            return
        self._changed.set()

    def _disturbs(self, runner: Runner, assignment: AssignmentRecord) -> bool:
        """Whether a wish is a reason to interrupt the pursuit of the one before; if not, it has been dealt with."""
        match self._weigh(assignment):
            case Refuse(reason):
                self._log_refusal(reason)
                return False
            case Keep():
                again = runner.state is ShardState.REJECTED and assignment.generation != runner.wish.generation
                runner.update(assignment)
                return again
            case Replace():
                return True

    def gone(self) -> None:
        if self._wish is not None:
            self._wish = None
            self._changed.set()

    # --- what operators ask for ---------------------------------------------------------------------------------------

    @property
    def runner(self) -> Runner | None:
        """For reading; None while there is nothing to read."""
        return self._runner

    def drain(self, *, drained: bool) -> None:
        """Takes the shard out of routing, or back.

        Raises:
            NotNowError: it is on its way out.
        """
        self._staying().drain(drained=drained)

    def restart(self, drain: float | None) -> None:
        """Drains for so many seconds (None: as the wish says), ends the engine and starts it anew. Returns at once.

        Raises:
            NotNowError: it is on its way out.
        """
        self._restart = self._staying().wish.drain_seconds if drain is None else drain
        self._changed.set()

    def _staying(self) -> Runner:
        if self._runner is None or self._wish is None or self._runner.finishing:
            raise NotNowError(f"shard {self._shard} is not running here or is on its way out")
        return self._runner

    # --- the task -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until nothing of the shard is left. When it is cancelled, call :meth:`stop` or :meth:`release`."""
        await self._recover()
        while True:
            self._changed.clear()
            wish, runner = self._wish, self._runner
            if runner is not None and (wish is None or runner.finishing):
                await self._retire(runner, final=True)
            elif runner is not None and self._restart is not None:
                seconds, self._restart = self._restart, None
                await runner.restart(seconds)
            elif wish is None:
                self._context.publisher.remove(keyspace.shard(self._context.node, self._shard))
                self.closed = True
                return
            else:
                await self._follow(wish)

    async def stop(self, drain: float) -> None:
        """After :meth:`run` was cancelled: ends the engine; the wish is kept for the agent's next start."""
        if self._runner is not None:
            await self._runner.stop_for_shutdown(drain)

    async def release(self) -> None:
        """After :meth:`run` was cancelled: leaves the engine running."""
        if self._runner is not None:
            await self._runner.release()

    async def _recover(self) -> None:
        legacy, self._legacy = self._legacy, None
        if legacy is not None:
            self._runner = Runner(self._context, legacy.saved)
            await self._runner.adopt(legacy.marked, legacy.writers)
        self.recovered.set()

    async def _follow(self, wish: AssignmentRecord) -> None:
        runner, verdict = self._runner, self._weigh(wish)
        if isinstance(verdict, Refuse):
            self._log_refusal(verdict.reason)
            if runner is None:
                self._publish_refusal(wish, verdict.reason)
                await self._changed.wait()
                return
            self._wish = runner.wish
        elif isinstance(verdict, Keep):
            assert runner is not None
            runner.update(wish)
        elif runner is not None:
            await self._retire(runner, final=wish.epoch > runner.wish.epoch)
            return
        else:
            key = engine_key(self._secret, wish.replica, wish.epoch)
            self._runner = runner = Runner(self._context, SavedShard(node=self._context.node, assignment=wish, api_key=key))
        await self._pursue(runner)

    async def _pursue(self, runner: Runner) -> None:
        """Until the wish changes."""
        pursuit = asyncio.create_task(runner.pursue(), name=f"pursue-{self._shard}")
        changed = asyncio.create_task(self._changed.wait(), name=f"changed-{self._shard}")
        self._pursuing = True
        try:
            await asyncio.wait({pursuit, changed}, return_when=asyncio.FIRST_COMPLETED)
            if pursuit.done():
                pursuit.result()
                await changed
        finally:
            self._pursuing = False
            for task in (pursuit, changed):
                task.cancel()
            await asyncio.gather(pursuit, changed, return_exceptions=True)

    async def _retire(self, runner: Runner, *, final: bool) -> None:
        await runner.retire(final=final)
        self._runner = None

    def _log_refusal(self, reason: str) -> None:
        logger.warning("wish refused", extra={"fields": {"shard": self._shard, "cause": reason}})

    def _weigh(self, wish: AssignmentRecord) -> Verdict:
        current = self._runner.wish if self._runner is not None else None
        return weigh(current, wish, self._context.state.finished().get(self._shard, 0))

    def _publish_refusal(self, wish: AssignmentRecord, reason: str) -> None:
        context = self._context
        saved = SavedShard(node=context.node, assignment=wish, api_key="")
        record = shard_record(saved, ShardState.REJECTED, reason, now=context.clock.wall(), log_path="")
        context.publisher.put(keyspace.shard(context.node, self._shard), record.encode())
