"""Runs one wish: launch, probe, watch, restart; and its end: drain, stop, leave nothing.

Owned by a worker, which runs :meth:`Runner.pursue` until it wants something else and cancels it then, at any await. What a
cancelled call left half done (an engine that is being ended, say) the next call finds in ``self._engine`` and takes up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from llmgw_agent.engines.client import EngineClient
from llmgw_agent.engines.llamacpp_knows import judge_of
from llmgw_agent.engines.registry import find_driver
from llmgw_agent.errors import AttemptError, GangOverError, PortTakenError, RejectedError, SurvivorsError
from llmgw_agent.install.progress import Phase, Step
from llmgw_agent.logs.files import FIRST_FAILURE, SUSPECT, pin_first_failure, read_attempt
from llmgw_agent.process.end import end_family
from llmgw_agent.process.home import NOWHERE, Home, groups, home_of
from llmgw_agent.process.identity import Identity, is_running, peak_rss
from llmgw_agent.process.scan import Marked
from llmgw_agent.shard.context import Context
from llmgw_agent.shard.drain import wait_idle
from llmgw_agent.shard.engine import Engine, Outcome, end_leftovers, outcome_of, uninterrupted
from llmgw_agent.shard.evidence import ask_figures, keep
from llmgw_agent.shard.exits import classify
from llmgw_agent.shard.fetch import fetch, release
from llmgw_agent.shard.gang.listen import until_listening
from llmgw_agent.shard.gang.member import make_part
from llmgw_agent.shard.launch import Launcher, Prepared, check, is_worker, locate, marker_of, output_of
from llmgw_agent.shard.ledger import Ledger
from llmgw_agent.shard.liveness import Judge
from llmgw_agent.shard.machine import Machine, Move
from llmgw_agent.shard.measure import Measures
from llmgw_agent.shard.record import endpoint_record
from llmgw_agent.shard.recover import choose
from llmgw_agent.shard.restart import Limits, RestartPolicy, Retry
from llmgw_agent.shard.serve import Serving
from llmgw_agent.shard.state import SavedAttempt, SavedProcess, SavedShard
from llmgw_agent.shard.watch_work import Liveness
from llmgw_proto.records import AssignmentRecord, EndpointRecord, GangPhase, ShardState

PORT_RETRIES = 5
SURVIVOR_PAUSE = 5.0
RSS_EVERY = 10.0
INSTALL_TOLD_EVERY = 5.0
PINNED_READ = 256 << 10
DISMISSAL_SLACK = 5.0
RESTARTED = "restarted by the operator"
logger = logging.getLogger(__name__)


class Runner:
    def __init__(self, context: Context, saved: SavedShard) -> None:
        self._context = context
        self._ledger = Ledger(context, saved)
        self._part = make_part(context, self._ledger)
        self._machine = Machine(saved.assignment.shard, context.clock.monotonic, self._ledger.moved)
        self._policy = _policy(context, saved.failures)
        self._engine: Engine | None = None
        self.measures = Measures(self._ledger)
        self._died_unseen: Outcome | None = None
        self._left: list[Home] = []
        """Where something may still be of an engine that an earlier life of the agent started."""
        self._starting = False
        """Whether a start was begun and, so far as is known, has not succeeded."""
        self.served = saved.endpoint is not None or (saved.gang is not None and saved.gang.phase is GangPhase.READY)
        """Whether the present attempt was ever ready."""
        self._ready_since: float | None = None
        self._rss_read_at = 0.0
        self._port_retries = 0
        self._install_phase: Phase | None = None
        self._install_told = 0.0
        self._nudge = asyncio.Event()

    # --- what the worker asks and says --------------------------------------------------------------------------------

    @property
    def wish(self) -> AssignmentRecord:
        return self._ledger.wish

    @property
    def shard(self) -> str:
        return self._ledger.wish.shard

    @property
    def state(self) -> ShardState:
        return self._machine.state

    @property
    def history(self) -> tuple[Move, ...]:
        return self._machine.history

    @property
    def ledger(self) -> Ledger:
        """For reading."""
        return self._ledger

    @property
    def engine(self) -> Engine | None:
        """For reading."""
        return self._engine

    @property
    def client(self) -> EngineClient | None:
        """For questions to the engine, while one runs that can be asked."""
        attempt = self._ledger.saved.attempt
        if self._engine is None or attempt is None or is_worker(self.wish):
            return None
        return self._serving(attempt).client

    @property
    def finishing(self) -> bool:
        """Whether its end was begun, perhaps by an earlier life of the agent: it is then carried through."""
        return self._ledger.saved.finishing

    def update(self, wish: AssignmentRecord) -> None:
        """Takes over what of a new wish does not concern the process."""
        again = wish.generation != self.wish.generation
        endpoint = self._ledger.saved.endpoint
        if endpoint is not None:
            asked = {} if wish.capabilities is None else {"capabilities": wish.capabilities}
            endpoint = endpoint.model_copy(update={"policy": wish.policy, **asked})
        self._ledger.change(assignment=wish, endpoint=endpoint)
        self._ledger.publish()
        if endpoint is not None and self._machine.state is ShardState.READY:
            self._ledger.offer(endpoint)
        if again:
            self._policy.failures = 0
            self._nudge.set()

    async def adopt(self, marked: Sequence[Marked], writers: dict[str, Identity]) -> None:
        """At the agent's start: takes over the engine that an earlier life of it started, if it still runs."""
        context, saved = self._context, self._ledger.saved
        attempt, process = saved.attempt, saved.process
        if attempt is None:
            self._part.adopted(runs=False)
            return
        identity = choose(saved, marked, lambda one: is_running(one, context.boot))
        home = process.home if process is not None else NOWHERE
        if identity is not None:
            output = output_of(context, self.shard, attempt.id)
            home = home if home != NOWHERE else home_of(identity.pid, attempt.id)
            marker = marker_of(context, self.wish, attempt)
            self._engine = await Engine.adopt(identity, marker, output, writers.get(attempt.id), home)
        if self._engine is None:
            # After a reboot nothing failed: everything is simply gone.
            if process is not None and process.boot_id == context.boot:
                self._died_unseen = await outcome_of(home, None, context.clock)
            # Children of it may still be there, and use its GPUs.
            self._left = [home if home != NOWHERE else context.isolation.expected(context.owner, self.shard, attempt.id)]
            context.gpus.hold(self.shard, self.wish.gpus)
            self._part.adopted(runs=False, ended=self._died_unseen is not None)
            self._ledger.change(process=None, endpoint=None)
            return
        context.ports.hold(attempt.port)
        context.gpus.hold(self.shard, self.wish.gpus)
        self._part.adopted(runs=True)
        if process is None:
            self._ledger.change(process=SavedProcess.of(self._engine.identity, context.clock.wall(), home))
        logger.info("engine adopted", extra={"fields": {"shard": self.shard, "pid": self._engine.pid}})
        strays = {each.identity for each in marked if each.marker.attempt != attempt.id}
        others = [each for each in context.isolation.homes(context.owner, self.shard) if each != home]
        running = partial(_running, strays, context.boot)
        await end_family(running, context.clock, grace=1, cgroups=groups(others))

    async def pursue(self) -> None:
        """Keeps the wish fulfilled. Returns only when it is rejected."""
        async with self._part.following():
            await self._pursue()

    async def _pursue(self) -> None:
        while True:
            try:
                try:
                    await self._once()
                except GangOverError as over:
                    raise await self._end_with_others(over) from None
            except RejectedError as error:
                self._part.down(str(error))
                await self._end_engine()
                await release(self._context, self.wish)
                self._machine.to(ShardState.REJECTED, str(error))
                return
            except PortTakenError as error:
                self._port_retries += 1
                await self._failed(error, wait=self._port_retries > PORT_RETRIES)
            except AttemptError as error:
                await self._failed(error, wait=True)

    async def _once(self) -> None:
        """Returns never. Raises what ended the attempt, or kept it from beginning."""
        if self._died_unseen is not None:
            await self._explain_end(self._died_unseen)
        if self._engine is None:
            await self._launch()
        await self._serve()

    async def _end_with_others(self, over: GangOverError) -> AttemptError | RejectedError:
        """Ends the engine because another node's part of the replica is over. Returns why."""
        self._part.down(str(over))
        self._ledger.withdraw()
        self._undecided()
        self._machine.to(ShardState.FAILED, str(over))
        await self._end_engine()
        return await self._part.explain(over)

    async def retire(self, *, final: bool) -> None:
        """Drains and ends the engine and removes every trace but its logs. ``final``: its epoch must not come back."""
        self._ledger.change(finishing=final or self.finishing)
        self._machine.to(ShardState.DRAINING)
        await self._drain(self.wish.drain_seconds)
        await self._await_dismissal()
        await self._end_everything()
        await release(self._context, self.wish)
        self._machine.to(ShardState.STOPPED)
        self._ledger.close(finished=final)

    async def restart(self, drain: float) -> None:
        """After the pursuit was cancelled: drains and ends the engine; the next pursuit starts it anew, failures forgotten."""
        self._policy.failures = self._port_retries = 0
        self._died_unseen = None
        if self._engine is not None:
            self._machine.to(ShardState.DRAINING, RESTARTED)
            await self._drain(drain)
            self._part.down(RESTARTED)
        await self._end_engine()
        self._ready_since = None
        self._ledger.change(failures=0)

    def drain(self, *, drained: bool) -> None:
        """Takes it out of routing until it is brought back; the engine stays up."""
        self._ledger.drain(drained=drained)

    async def stop_for_shutdown(self, drain: float) -> None:
        """The agent ends and takes its engines along: the wish stays for its next start."""
        await self._drain(min(drain, self.wish.drain_seconds))
        await self._end_everything()
        self._ledger.withdraw_record()

    async def release(self) -> None:
        """The agent ends and leaves its engines running."""
        if self._engine is not None:
            await self._engine.release()

    # --- launch -------------------------------------------------------------------------------------------------------

    async def _launch(self) -> None:
        context, wish = self._context, self.wish
        self._ledger.expect_attempt(None)
        self._part.preparing()
        self._machine.to(ShardState.INSTALLING)
        driver, located = await locate(context, wish, self._installing)
        self._machine.to(ShardState.FETCHING)
        weights = None
        if not (is_worker(wish) and driver.worker_listens(wish)):
            # A worker that listens gets its part of the weights from the head.
            judge = judge_of(located) if wish.engine == "llamacpp" else None
            weights = await fetch(context, wish, lambda reason: self._machine.to(ShardState.FETCHING, reason), judge)
        checked = await check(context, wish, driver, weights)
        # Whatever of an earlier attempt still runs, under whatever parent, goes first.
        await self._end_leftovers()
        await context.gpus.take(self.shard, wish.gpus, lambda reason: self._machine.to(ShardState.FETCHING, reason))
        self._machine.to(ShardState.STARTING)
        gang = await self._part.assemble(driver, lambda reason: self._machine.to(ShardState.STARTING, reason))
        self._machine.to(ShardState.STARTING)
        self.served = False
        launcher = Launcher(context, wish, self._ledger.saved.api_key, self._save_attempt, gang, self._part.started)
        self._starting = True
        await uninterrupted(launcher.start(Prepared(driver, located, checked)), self._started)
        self._ledger.publish()

    def _started(self, engine: Engine) -> None:
        self._engine, self._starting = engine, False

    def _installing(self, step: Step) -> None:
        """Shows how far the installation is, not more often than anybody reads it."""
        now = self._context.clock.monotonic()
        if step.phase == self._install_phase and now - self._install_told < INSTALL_TOLD_EVERY:
            return
        self._install_phase, self._install_told = step.phase, now
        self._machine.to(ShardState.INSTALLING, str(step))

    def _save_attempt(self, attempt: SavedAttempt, process: SavedProcess | None) -> None:
        self._ledger.change(attempt=attempt, process=process, endpoint=None)
        if process is None:
            self.measures = Measures(self._ledger)
            self._ledger.begin_attempt()

    # --- serve --------------------------------------------------------------------------------------------------------

    def _serving(self, attempt: SavedAttempt) -> Serving:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(attempt.host, attempt.host)  # noqa: S104 - read, not bound
        url = f"http://[{host}]:{attempt.port}" if ":" in host else f"http://{host}:{attempt.port}"
        client = EngineClient(self._context.session, url, self._ledger.saved.api_key)
        return Serving(self._context.clock, find_driver(self._context.drivers, self.wish.engine), self.wish, client)

    async def _serve(self) -> None:
        """Returns never. Raises RejectedError, AttemptError when this attempt is over."""
        engine = self._engine
        assert engine is not None
        watch_over = self._work_along() if is_worker(self.wish) else self._watch_over()
        await _until_first(engine.wait(), watch_over, self._part.watch(), raising=lambda: not engine.ended)
        self._ledger.withdraw()
        # At once: others must not wait until systemd has said how it ended.
        self._part.down("")
        await self._explain_end(await engine.outcome(self._context.clock))

    async def _watch_over(self) -> None:
        """Returns never. Raises AttemptError."""
        context, attempt, known = self._context, self._ledger.saved.attempt, self._ledger.saved.endpoint
        assert attempt is not None
        serving = self._serving(attempt)
        limits = context.config.engines
        if self._machine.state is ShardState.ASSIGNED:
            await self._part.until_known()
        settled = self._machine.state in (ShardState.ASSIGNED, ShardState.READY)
        if settled and known is not None and await serving.healthy():
            # Adopted, or the pursuit was interrupted; was ready before, and answers: routers need not miss it for a moment.
            self._became_ready(known)
        else:
            if self._machine.state is ShardState.ASSIGNED:
                self._machine.to(ShardState.PROBING)
            # Of an adopted one nobody knows when it began.
            began, started = context.clock.monotonic(), self._machine.state is ShardState.STARTING
            # An engine that was ready before has no start to be patient with.
            limit = limits.start_seconds if known is None else limits.hang_seconds
            found = await serving.become_ready(limit, lambda: self._listening(began))
            await self._part.until_joined()
            if started:
                timings = self._ledger.saved.timings
                waited = context.clock.monotonic() - began - (timings.start_to_listen or 0.0)
                self._ledger.change(timings=timings.model_copy(update={"listen_to_ready": waited}))
            self._became_ready(endpoint_record(context.node, context.config.node.address, self.wish, attempt, found))
        endpoint = self._ledger.saved.endpoint
        assert endpoint is not None
        judge = Judge(limits.stall_seconds, limits.probe_seconds)
        liveness = Liveness(context.clock, judge, endpoint, attempt.port, self.measures.hear, context.connections.count)
        await serving.watch_health(limits.hang_seconds, liveness, partial(self._suspect, serving.client), self._healthy)

    async def _work_along(self) -> None:
        """For a worker of a replica over several nodes, which serves nobody but its head. Returns never.

        Raises:
            AttemptError: it does not listen in time.
        """
        context, attempt, began = self._context, self._ledger.saved.attempt, self._context.clock.monotonic()
        assert attempt is not None
        if self._machine.state is ShardState.ASSIGNED:
            await self._part.until_known()
            self._machine.to(ShardState.PROBING)
        if find_driver(context.drivers, self.wish.engine).worker_listens(self.wish):
            limit = context.config.engines.start_seconds
            await until_listening(context.config.gang_address, attempt.port, context.clock, limit)
            self._part.ready()
        self._listening(began)
        if self._machine.state is not ShardState.READY:
            # Ready already: the pursuit was interrupted by a wish that was taken back at once.
            self._machine.to(ShardState.PROBING, f"runs, and waits for the head on node {self.wish.peers[0]} to serve")
        await self._part.until_ready()
        self._part.ready()
        self._ready_since, self.served = context.clock.monotonic(), True
        self._machine.to(ShardState.READY)
        while True:
            self._read_rss()
            self._ledger.heal()
            await context.clock.sleep(RSS_EVERY)

    def _listening(self, began: float) -> None:
        if self._machine.state is ShardState.STARTING:
            took = self._context.clock.monotonic() - began
            self._ledger.change(timings=self._ledger.saved.timings.model_copy(update={"start_to_listen": took}))
            self._machine.to(ShardState.PROBING)

    def _became_ready(self, endpoint: EndpointRecord) -> None:
        self._ready_since, self.served = self._context.clock.monotonic(), True
        self._port_retries = 0
        self._read_rss()
        # First the endpoint: whoever reads Ready may count on it.
        self._ledger.offer(endpoint.model_copy(update={"draining": False, "policy": self.wish.policy}))
        self._part.ready()
        self._machine.to(ShardState.READY)

    async def _suspect(self, client: EngineClient, reason: str) -> None:
        self._ledger.suspend()
        self._machine.to(ShardState.SUSPECT, reason)
        engine, attempt = self._engine, self._ledger.saved.attempt
        if engine is None or attempt is None:
            return
        figures = await ask_figures(client)
        folder = self._context.log_folder(self.shard)
        try:
            await asyncio.to_thread(keep, folder, self.wish.epoch, reason, figures, engine.pid, attempt.id)
        except OSError as error:
            logger.warning("cannot keep what was seen of a suspect", extra={"fields": {"file": SUSPECT, "cause": str(error)}})

    def _healthy(self) -> None:
        endpoint = self._ledger.saved.endpoint
        if self._machine.state is ShardState.SUSPECT and endpoint is not None:
            self._ledger.offer(endpoint)
            self._machine.to(ShardState.READY)
        self._ledger.heal()
        if self._context.clock.monotonic() - self._rss_read_at >= RSS_EVERY:
            self._read_rss()

    def _read_rss(self) -> None:
        self._rss_read_at = self._context.clock.monotonic()
        if self._engine is not None:
            self._ledger.peak_rss(peak_rss(self._engine.pid))

    # --- failure ------------------------------------------------------------------------------------------------------

    async def _explain_end(self, outcome: Outcome) -> None:
        """Raises what the end of the engine means: RejectedError, PortTakenError or AttemptError."""
        self._undecided()
        self._part.down("")
        self._machine.to(ShardState.FAILED, "the engine ended")
        attempt = self._ledger.saved.attempt
        await self._end_engine()
        self._died_unseen = None
        assert attempt is not None
        lines = await asyncio.to_thread(read_attempt, self._context.log_folder(self.shard), attempt.id)
        driver = find_driver(self._context.drivers, self.wish.engine)
        reason = classify(outcome.status, lines, driver.patterns, was_ready=self.served, oom=outcome.oom)
        if reason.final:
            await asyncio.to_thread(self._pin, reason.text, attempt.id)
            raise RejectedError(reason.text)
        if reason.port_taken:
            raise PortTakenError(reason.text)
        raise AttemptError(reason.text)

    async def _failed(self, error: AttemptError, *, wait: bool) -> None:
        """Cleans up and, with ``wait``, pauses as the restart policy says."""
        self._ledger.withdraw()
        self._undecided()
        self._part.down(str(error))
        self._machine.to(ShardState.FAILED, str(error))
        attempt = self._ledger.saved.attempt
        await self._end_engine()
        clock = self._context.clock
        ready_for = clock.monotonic() - self._ready_since if self._ready_since is not None else 0.0
        self._ready_since = None
        self._ledger.change(restarts=self._ledger.saved.restarts + 1)
        if not wait or not self._part.paces:
            return
        decision = self._policy.failed(str(error), ready_for)
        self._ledger.change(failures=self._policy.failures)
        if self._policy.failures == 1 and attempt is not None:
            await asyncio.to_thread(self._pin, str(error), attempt.id)
        pause = decision.delay if isinstance(decision, Retry) else decision.cooldown
        self._ledger.expect_attempt(clock.wall() + pause if isinstance(decision, Retry) else None)
        self._machine.to(ShardState.FAILED, decision.reason)
        self._nudge.clear()
        await _until_first(clock.sleep(pause), self._nudge.wait())

    def _undecided(self) -> None:
        """Failed without an attempt ahead means given up; until the policy has spoken, one is to be expected."""
        self._ledger.expect_attempt(self._context.clock.wall())

    def _pin(self, reason: str, attempt: str) -> None:
        folder = self._context.log_folder(self.shard)
        try:
            pin_first_failure(folder, self.wish.epoch, reason, read_attempt(folder, attempt, PINNED_READ))
        except OSError as error:
            fields = {"file": FIRST_FAILURE, "cause": str(error)}
            logger.warning("cannot keep the first failure's log", extra={"fields": fields})

    # --- end ----------------------------------------------------------------------------------------------------------

    async def _drain(self, seconds: float) -> None:
        """Lets running requests finish; returns at once if there can be none."""
        engine, attempt = self._engine, self._ledger.saved.attempt
        if engine is None or attempt is None or self._ledger.saved.endpoint is None:
            return
        self._ledger.offer_draining()
        await self._context.publisher.settled(2)
        await _until_first(wait_idle(self._serving(attempt), attempt.port, self._context.clock, seconds), engine.wait())

    async def _await_dismissal(self) -> None:
        """A worker of a replica over several nodes stays until its head has drained."""
        if self._engine is None or not is_worker(self.wish):
            return
        limit = self.wish.drain_seconds + self._context.config.engines.stop_seconds + DISMISSAL_SLACK
        async with self._part.following():
            await _until_first(self._part.until_dismissed(limit), self._engine.wait())

    async def _end_everything(self) -> None:
        await self._end_engine()
        await self._end_leftovers()

    async def _end_engine(self) -> None:
        """Ends all processes, however long it takes. An endpoint that drains stays until then: it tells routers why."""
        engine, attempt = self._engine, self._ledger.saved.attempt
        if engine is not None:
            await self._despite_survivors(lambda: engine.end(self._context.clock, self._context.config.engines.stop_seconds))
            if attempt is not None:
                self._context.ports.give_back(attempt.port)
        self._engine = None
        if self._left or self._starting:
            await self._end_leftovers()
        self._part.ended()
        self._context.gpus.give_back(self.shard)
        self._ledger.withdraw()
        if self._ledger.saved.process is not None:
            self._ledger.change(process=None)

    async def _end_leftovers(self) -> None:
        """Ends what carries the shard's mark although no engine of it is known, such as children that lost their parent."""
        context = self._context
        grace = context.config.engines.stop_seconds
        homes = [*self._left, *context.isolation.homes(context.owner, self.shard)]
        homes = list(dict.fromkeys(each for each in homes if each != NOWHERE))
        logs = context.log_folder(self.shard)
        await self._despite_survivors(lambda: end_leftovers(context.owner, self.shard, homes, logs, context.clock, grace))
        self._left, self._starting = [], False

    async def _despite_survivors(self, end: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            try:
                return await end()
            except SurvivorsError as error:
                logger.error("processes do not die", extra={"fields": {"shard": self.shard, "cause": str(error)}})  # noqa: TRY400
                self._machine.to(self._machine.state, str(error))
            await self._context.clock.sleep(SURVIVOR_PAUSE)


def _running(identities: set[Identity], boot: str) -> set[Identity]:
    return {each for each in identities if is_running(each, boot)}


def _policy(context: Context, failures: int) -> RestartPolicy:
    limits = context.config.restart
    return RestartPolicy(
        Limits(limits.attempts, limits.interval_seconds, limits.first_delay, limits.longest_delay, limits.cooldown_seconds),
        context.spread,
        failures,
    )


async def _until_first(*works: Coroutine[Any, Any, Any], raising: Callable[[], bool] = lambda: True) -> None:
    """Runs all until one is over, then cancels the others. If that one failed and ``raising`` says so, raises its error."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if raising():
        for task in done:
            task.result()
