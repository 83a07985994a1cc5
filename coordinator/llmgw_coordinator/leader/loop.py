"""The loop of every coordinator: when something changed, plan; whoever leads applies the plan.

The others plan too, so that each can tell why a model waits, and so that a new leader knows already which nodes are away.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from llmgw_base.clock import Clock
from llmgw_base.etcd.api import Store
from llmgw_base.etcd.errors import StoreError, StoreFullError
from llmgw_base.etcd.timers import done_within, reap
from llmgw_coordinator.errors import NotLeaderError
from llmgw_coordinator.leader.apply import Applier, verify
from llmgw_coordinator.leader.cluster import create_if_absent
from llmgw_coordinator.leader.election import Election
from llmgw_coordinator.leader.fence import Term
from llmgw_coordinator.leader.world import world_of
from llmgw_coordinator.planner import Plan, Settings, World, plan
from llmgw_coordinator.planner.replica import broken
from llmgw_coordinator.state.durations import Absence, Durations
from llmgw_coordinator.state.mirror import Mirror
from llmgw_coordinator.state.view import Place, View
from llmgw_proto.records import ShardState

#: Seconds in which further changes join the pass that the first one caused.
COALESCE = 0.05
#: The same for a standby, whose plans only explain.
COALESCE_STANDBY = 1.0
#: Pause after a pass as a multiple of the time it took, so that planning a large cluster leaves the process time for the rest.
REST = 4.0
#: Seconds between passes when nothing changes.
PERIOD = 5.0
#: Seconds until a failed shard without an attempt ahead counts as given up. An agent reports the failure at once, and may need
#: the time to end the engine before it can say whether and when it tries again.
FAILURE_SETTLES = 15.0
#: Seconds until a write that the watch does not show is looked up.
ECHO_LIMIT = 5.0

logger = logging.getLogger(__name__)


class Reconciler:
    def __init__(
        self,
        store: Store,
        mirror: Mirror,
        election: Election,
        clock: Clock,
        settings: Settings,
        *,
        cluster_name: str,
        observe_seconds: Callable[[float], None] = lambda seconds: None,
        planner: Callable[[World], Plan] = plan,
    ) -> None:
        self._store = store
        self._mirror = mirror
        self._election = election
        self._clock = clock
        self._settings = settings
        self._cluster_name = cluster_name
        self._observe_seconds = observe_seconds
        self._planner = planner
        self._applier = Applier(store, mirror.expected)
        self._absence = Absence()
        self._failures: Durations[Place] = Durations()
        self._wake = asyncio.Event()
        self._elected = asyncio.Event()
        self._next_return = PERIOD
        self._planning = 0.0
        self.outcome = Plan()
        """The last plan, applied or not: why models wait, what is wrong."""
        self.gone_for: dict[str, float] = {}
        """Seconds of absence of the nodes that are away, as of the last pass."""
        self.trouble: str | None = None
        """Why the leader's last pass could not write what it decided."""
        mirror.on_change(self._wake.set)
        election.on_change(self._on_election)

    async def run(self) -> None:
        """Until cancelled. A pass that fails is logged and the next one begins from what is true then."""
        await self._mirror.synced()
        while True:
            try:
                more = await self.pass_once()
            except Exception:
                logger.exception("a pass failed; the next one comes in %g s", PERIOD)
                more = False
            if not more:
                await self._until_woken()
            await self._rest()

    async def pass_once(self) -> bool:
        """Plans and, when leading, applies. Returns whether another pass is due at once."""
        self._wake.clear()
        self._elected.clear()
        if self._mirror.trouble is not None:
            return False
        term = self._election.term
        if term is not None and not await self._seen_own_writes():
            return False
        view = self._mirror.view()
        self._plan(view)
        self.trouble = None
        if term is None:
            return False
        try:
            return await self._lead(term, view)
        except (NotLeaderError, StoreError) as error:
            self._stopped(error)
            return False

    def _stopped(self, cause: Exception) -> None:
        logger.warning("the leader's pass ended early", extra={"fields": {"cause": str(cause)}})
        self.trouble = "etcd is out of space" if isinstance(cause, StoreFullError) else "what was decided could not be written"
        self.trouble = f"{self.trouble}: {cause}"

    def _on_election(self) -> None:
        self._wake.set()
        self._elected.set()

    def _plan(self, view: View) -> None:
        began = self._clock.monotonic()
        self.gone_for = self._absence.update(view.nodes, view.breathing, self._mirror.resyncs, began)
        failed_for = self._failures.update(
            (place for place, shard in view.shards.items() if shard.record.state is ShardState.FAILED and broken(shard.record)),
            self._mirror.resyncs,
            began,
        )
        settling = {place: FAILURE_SETTLES - seconds for place, seconds in failed_for.items() if seconds < FAILURE_SETTLES}
        away = [self._settings.grace - seconds for seconds in self.gone_for.values() if seconds < self._settings.grace]
        self._next_return = min([PERIOD, *away, *settling.values()])
        outcome = self._planner(world_of(view, self.gone_for, self._absence.witnessed, settling, self._settings))
        self._planning = self._clock.monotonic() - began
        self._observe_seconds(self._planning)
        for name, error in outcome.failures.items():
            if repr(self.outcome.failures.get(name)) != repr(error):
                logger.error("planning failed", extra={"fields": {"model": name}}, exc_info=error)
        self.outcome = outcome

    async def _lead(self, term: Term, view: View) -> bool:
        if view.cluster is None:
            await create_if_absent(self._store, term, self._clock, self._cluster_name)
        if not self.outcome.decisions:
            return False
        applied = await self._applier.apply(term, self.outcome.decisions, view)
        if applied.stopped is not None:
            self._stopped(applied.stopped)
            return False
        # What follows from this pass (a place that became free) is for the next one, once the echo of this one is in.
        return applied.written > 0

    async def _seen_own_writes(self) -> bool:
        """Waits until the mirror shows what this coordinator wrote; whether it does now."""
        expected = self._mirror.expected
        if not len(expected):
            return True
        if await self._within(ECHO_LIMIT, expected.settled()):
            return True
        await verify(self._store, expected, expected.outstanding())
        return not len(expected)

    async def _until_woken(self) -> None:
        """Until something changed, a node's grace ends, or the period is over."""
        await self._within(max(0.0, self._next_return), self._wake.wait())

    async def _rest(self) -> None:
        """Lets further changes come in; a new leader does not rest."""
        least = COALESCE if self._election.term is not None else COALESCE_STANDBY
        await self._within(max(least, REST * self._planning), self._elected.wait())

    async def _within(self, seconds: float, what: Coroutine[Any, Any, object]) -> bool:
        waiting = asyncio.ensure_future(what)
        try:
            return await done_within(self._clock, waiting, seconds)
        finally:
            await reap(waiting)
