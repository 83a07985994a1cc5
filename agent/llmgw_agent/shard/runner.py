"""Runs one wish: launch, probe, watch, restart; and its end: drain, stop, leave nothing.

Owned by a worker, which runs :meth:`pursue` until it wants something else and cancels it then, at any await. What a cancelled
call left half done (an engine that is being ended, say) the next call finds in ``self._engine`` and takes up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from llmgw_agent.engines.client import EngineClient
from llmgw_agent.engines.registry import find_driver
from llmgw_agent.errors import AttemptError, PortTakenError, RejectedError, SurvivorsError
from llmgw_agent.logs.files import FIRST_FAILURE, pin_first_failure, read_attempt
from llmgw_agent.process.end import end_family
from llmgw_agent.process.identity import Identity, is_running
from llmgw_agent.process.logmon import NAME
from llmgw_agent.process.scan import Marked, find_family
from llmgw_agent.shard.context import Context
from llmgw_agent.shard.drain import wait_idle
from llmgw_agent.shard.engine import Engine
from llmgw_agent.shard.exits import classify
from llmgw_agent.shard.launch import Launcher, Prepared, check, locate, marker_of, output_of
from llmgw_agent.shard.machine import Machine, Move
from llmgw_agent.shard.record import endpoint_record, shard_record
from llmgw_agent.shard.recover import choose
from llmgw_agent.shard.restart import Limits, RestartPolicy, Retry
from llmgw_agent.shard.serve import Serving
from llmgw_agent.shard.state import SavedAttempt, SavedProcess, SavedShard
from llmgw_proto import keyspace
from llmgw_proto.records import AssignmentRecord, EndpointRecord, ShardState, Timings

PORT_RETRIES = 5
SURVIVOR_PAUSE = 5.0
RSS_EVERY = 10.0
logger = logging.getLogger(__name__)


class Runner:
    def __init__(self, context: Context, saved: SavedShard) -> None:
        self._context = context
        self._saved = saved
        self._engine: Engine | None = None
        self._died_unseen = False
        self._next_attempt_at: float | None = None
        self._ready_since: float | None = None
        self._peak_rss, self._rss_read_at = 0, 0.0
        self._port_retries = 0
        self._nudge = asyncio.Event()
        limits = context.config.restart
        self._policy = RestartPolicy(
            Limits(limits.attempts, limits.interval_seconds, limits.first_delay, limits.longest_delay, limits.cooldown_seconds),
            context.spread,
            saved.failures,
        )
        self._machine = Machine(self.shard, context.clock.monotonic, self._moved)
        self._save()
        self._publish()

    # --- what the worker asks and says --------------------------------------------------------------------------------

    @property
    def wish(self) -> AssignmentRecord:
        return self._saved.assignment

    @property
    def shard(self) -> str:
        return self._saved.assignment.shard

    @property
    def state(self) -> ShardState:
        return self._machine.state

    @property
    def finishing(self) -> bool:
        """Whether its end was begun, perhaps by an earlier life of the agent: it is then carried through."""
        return self._saved.finishing

    def update(self, wish: AssignmentRecord) -> None:
        """Takes over what of a new wish does not concern the process."""
        again = wish.generation != self.wish.generation
        self._change(assignment=wish)
        self._publish()
        endpoint = self._saved.endpoint
        if endpoint is not None:
            known = {"policy": wish.policy}
            self._offer(
                endpoint.model_copy(update=known if wish.capabilities is None else {**known, "capabilities": wish.capabilities})
            )
        if again:
            self._policy.failures = 0
            self._nudge.set()

    async def adopt(self, marked: Sequence[Marked], writers: dict[str, Identity]) -> None:
        """At the agent's start: takes over the engine that an earlier life of it started, if it still runs."""
        context, attempt = self._context, self._saved.attempt
        identity = choose(self._saved, marked, lambda one: is_running(one, context.boot))
        if attempt is None:
            return
        if identity is not None:
            output = output_of(context, self.shard, attempt.id)
            marker = marker_of(context, self.wish, attempt)
            self._engine = Engine.adopt(identity, marker, output, writers.get(attempt.id))
        if self._engine is None:
            process = self._saved.process
            # After a reboot nothing failed: everything is simply gone.
            self._died_unseen = process is not None and process.boot_id == context.boot
            self._change(process=None, endpoint=None)
            return
        context.ports.hold(attempt.port)
        context.gpus.hold(self.shard, self.wish.gpus)
        if self._saved.process is None:
            self._change(process=_saved_process(self._engine.identity, context.clock.wall()))
        logger.info("engine adopted", extra={"fields": {"shard": self.shard, "pid": self._engine.pid}})
        strays = {each.identity for each in marked if each.marker.attempt != attempt.id}
        await end_family(lambda: {each for each in strays if is_running(each, context.boot)}, context.clock, grace=1)

    async def pursue(self) -> None:
        """Keeps the wish fulfilled. Returns only when it is rejected."""
        while True:
            try:
                if self._died_unseen:
                    self._died_unseen = False
                    self._machine.to(ShardState.FAILED, "the engine ended while the agent was away")
                    await self._explain_end(None)
                if self._engine is None:
                    await self._launch()
                await self._serve()
            except RejectedError as error:
                await self._end_engine()
                self._machine.to(ShardState.REJECTED, str(error))
                return
            except PortTakenError as error:
                self._port_retries += 1
                await self._failed(error, wait=self._port_retries > PORT_RETRIES)
            except AttemptError as error:
                await self._failed(error, wait=True)

    async def retire(self, *, final: bool, drain: float | None = None) -> None:
        """Drains and ends the engine and removes every trace but its logs. ``final``: its epoch must not come back."""
        self._change(finishing=final or self._saved.finishing)
        serving = self._engine is not None and self._saved.endpoint is not None
        self._machine.to(ShardState.DRAINING)
        if serving:
            await self._drain(self.wish.drain_seconds if drain is None else drain)
        await self._end_engine()
        self._machine.to(ShardState.STOPPED)
        context = self._context
        if final:
            self._guarded(lambda: context.state.finish(self.shard, self.wish.epoch))
        self._guarded(lambda: context.state.remove(self.shard))
        context.publisher.remove(self._endpoint_key)
        context.publisher.remove(keyspace.shard(context.node, self.shard))

    async def stop_for_shutdown(self, drain: float) -> None:
        """The agent ends and takes its engines along: the wish stays for its next start."""
        if self._engine is not None and self._saved.endpoint is not None:
            await self._drain(min(drain, self.wish.drain_seconds))
        await self._end_engine()
        self._context.publisher.remove(keyspace.shard(self._context.node, self.shard))

    async def release(self) -> None:
        """The agent ends and leaves its engines running."""
        if self._engine is not None:
            await self._engine.release()

    # --- launch -------------------------------------------------------------------------------------------------------

    async def _launch(self) -> None:
        context, wish = self._context, self.wish
        self._next_attempt_at = None
        self._machine.to(ShardState.INSTALLING)
        driver, located = await locate(context, wish)
        self._machine.to(ShardState.FETCHING)
        checked = await check(context, wish, driver)
        # Whatever of an earlier attempt still runs, under whatever parent, goes first.
        await self._until_gone(partial(find_family, None, context.node, wish.shard))
        await context.gpus.take(self.shard, wish.gpus)
        self._machine.to(ShardState.STARTING)
        launcher = Launcher(context, wish, self._saved.api_key, self._save_attempt)
        self._engine, _ = launcher.start(Prepared(driver, located, checked))
        self._publish()

    def _save_attempt(self, attempt: SavedAttempt, process: SavedProcess | None) -> None:
        self._change(attempt=attempt, process=process, endpoint=None, timings=Timings())

    # --- serve --------------------------------------------------------------------------------------------------------

    def _serving(self) -> Serving:
        context, attempt = self._context, self._saved.attempt
        assert attempt is not None
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(attempt.host, attempt.host)  # noqa: S104 - read, not bound
        url = f"http://[{host}]:{attempt.port}" if ":" in host else f"http://{host}:{attempt.port}"
        client = EngineClient(context.session, url, self._saved.api_key)
        return Serving(context.clock, find_driver(context.drivers, self.wish.engine), self.wish, client)

    async def _serve(self) -> None:
        """Returns never. Raises RejectedError, AttemptError when this attempt is over."""
        engine = self._engine
        assert engine is not None
        ended = asyncio.create_task(engine.wait(), name=f"end-{self.shard}")
        watched = asyncio.create_task(self._watch_over(), name=f"watch-{self.shard}")
        try:
            await asyncio.wait({ended, watched}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (ended, watched):
                task.cancel()
            results = await asyncio.gather(ended, watched, return_exceptions=True)
        if engine.ended:
            self._retract()
            self._machine.to(ShardState.FAILED, "the engine ended")
            await self._explain_end(await engine.wait())
        assert isinstance(results[1], BaseException)
        raise results[1]

    async def _watch_over(self) -> None:
        """Returns never. Raises AttemptError."""
        context, serving = self._context, self._serving()
        if self._saved.endpoint is not None and self._machine.state is ShardState.ASSIGNED and await serving.healthy():
            # Adopted, was ready before, and answers: routers need not miss it for a moment.
            self._became_ready(self._saved.endpoint)
        else:
            if self._machine.state is ShardState.ASSIGNED:
                self._machine.to(ShardState.PROBING)
            began = context.clock.monotonic()
            found = await serving.become_ready(context.config.engines.start_seconds, lambda: self._listening(began))
            assert self._saved.attempt is not None
            timings = self._saved.timings
            waited = context.clock.monotonic() - began - (timings.start_to_listen or 0.0)
            self._change(timings=timings.model_copy(update={"listen_to_ready": waited}))
            self._became_ready(
                endpoint_record(context.node, context.config.node.address, self.wish, self._saved.attempt, found)
            )
        await serving.watch_health(context.config.engines.hang_seconds, self._suspect, self._healthy)

    def _listening(self, began: float) -> None:
        if self._machine.state is ShardState.STARTING:
            self._change(timings=Timings(start_to_listen=self._context.clock.monotonic() - began))
            self._machine.to(ShardState.PROBING)

    def _became_ready(self, endpoint: EndpointRecord) -> None:
        self._ready_since = self._context.clock.monotonic()
        self._port_retries = 0
        self._read_rss()
        self._machine.to(ShardState.READY)
        self._offer(endpoint.model_copy(update={"draining": False, "policy": self.wish.policy}))

    def _suspect(self) -> None:
        self._context.publisher.remove(self._endpoint_key)
        self._machine.to(ShardState.SUSPECT, "the engine runs but does not answer; routers leave it out until it does")

    def _healthy(self) -> None:
        if self._machine.state is ShardState.SUSPECT and self._saved.endpoint is not None:
            self._machine.to(ShardState.READY)
            self._offer(self._saved.endpoint)
        if "state" in self._context.problems:
            self._save()
        if self._context.clock.monotonic() - self._rss_read_at >= RSS_EVERY and self._read_rss():
            self._publish()

    # --- failure ------------------------------------------------------------------------------------------------------

    async def _explain_end(self, status: int | None) -> None:
        """Raises what the end of the engine means."""
        attempt = self._saved.attempt
        await self._end_engine()
        assert attempt is not None
        lines = await asyncio.to_thread(read_attempt, self._context.log_folder(self.shard), attempt.id)
        driver = find_driver(self._context.drivers, self.wish.engine)
        reason = classify(status, lines, driver.patterns, was_ready=self._ready_since is not None)
        if reason.final:
            await asyncio.to_thread(self._pin, reason.text, lines)
            raise RejectedError(reason.text)
        if reason.port_taken:
            raise PortTakenError(reason.text)
        raise AttemptError(reason.text)

    async def _failed(self, error: AttemptError, *, wait: bool) -> None:
        self._retract()
        self._machine.to(ShardState.FAILED, str(error))
        attempt = self._saved.attempt
        await self._end_engine()
        clock = self._context.clock
        ready_for = clock.monotonic() - self._ready_since if self._ready_since is not None else 0.0
        self._ready_since = None
        self._change(restarts=self._saved.restarts + 1)
        if not wait:
            return
        decision = self._policy.failed(str(error), ready_for)
        self._change(failures=self._policy.failures)
        if self._policy.failures == 1 and attempt is not None:
            lines = await asyncio.to_thread(read_attempt, self._context.log_folder(self.shard), attempt.id, 256 << 10)
            await asyncio.to_thread(self._pin, str(error), lines)
        pause = decision.delay if isinstance(decision, Retry) else decision.cooldown
        self._next_attempt_at = clock.wall() + pause if isinstance(decision, Retry) else None
        self._machine.to(ShardState.FAILED, decision.reason)
        self._nudge.clear()
        await self._sleep_or_nudge(pause)

    async def _sleep_or_nudge(self, pause: float) -> None:
        tasks = {asyncio.ensure_future(self._context.clock.sleep(pause)), asyncio.ensure_future(self._nudge.wait())}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _pin(self, reason: str, lines: list[str]) -> None:
        try:
            pin_first_failure(self._context.log_folder(self.shard), self.wish.epoch, reason, lines)
        except OSError as error:
            logger.warning(
                "cannot keep the first failure's log", extra={"fields": {"file": FIRST_FAILURE, "cause": str(error)}}
            )

    # --- end ----------------------------------------------------------------------------------------------------------

    async def _drain(self, seconds: float) -> None:
        engine, attempt, endpoint = self._engine, self._saved.attempt, self._saved.endpoint
        assert engine is not None
        assert attempt is not None
        context = self._context
        if endpoint is not None:
            self._offer(endpoint.model_copy(update={"draining": True}))
            await context.publisher.settled(2)
        idle = asyncio.create_task(wait_idle(self._serving(), attempt.port, context.clock, seconds), name=f"idle-{self.shard}")
        ended = asyncio.create_task(engine.wait(), name=f"end-{self.shard}")
        try:
            await asyncio.wait({idle, ended}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (idle, ended):
                task.cancel()
            await asyncio.gather(idle, ended, return_exceptions=True)

    async def _end_engine(self) -> None:
        """Ends all processes, however long it takes. An endpoint that drains stays until then: it tells routers why."""
        engine = self._engine
        while engine is not None:
            try:
                await engine.end(self._context.clock, self._context.config.engines.stop_seconds)
                break
            except SurvivorsError as error:
                await self._survivors(error)
        if engine is not None and self._saved.attempt is not None:
            self._context.ports.give_back(self._saved.attempt.port)
        self._engine = None
        self._context.gpus.give_back(self.shard)
        self._retract()
        if self._saved.process is not None:
            self._change(process=None)

    async def _until_gone(self, family: partial[set[Identity]]) -> None:
        while True:
            try:
                await end_family(family, self._context.clock, grace=self._context.config.engines.stop_seconds)
            except SurvivorsError as error:
                await self._survivors(error)
            else:
                return

    async def _survivors(self, error: SurvivorsError) -> None:
        logger.error("processes do not die", extra={"fields": {"shard": self.shard, "cause": str(error)}})
        self._machine.to(self._machine.state, str(error))
        await self._context.clock.sleep(SURVIVOR_PAUSE)

    # --- what others see, and what is kept ----------------------------------------------------------------------------

    @property
    def _endpoint_key(self) -> str:
        return keyspace.endpoint(self._context.node, self.wish.replica)

    def _offer(self, endpoint: EndpointRecord) -> None:
        if not endpoint.draining:
            self._change(endpoint=endpoint)
        self._context.publisher.put(self._endpoint_key, endpoint.encode(), leased=True)

    def _retract(self) -> None:
        self._context.publisher.remove(self._endpoint_key)
        if self._saved.endpoint is not None:
            self._change(endpoint=None)

    def _moved(self, move: Move) -> None:
        fields = {"shard": self.shard, "state": move.state, **({"reason": move.reason} if move.reason else {})}
        level = logging.WARNING if move.state in (ShardState.FAILED, ShardState.REJECTED, ShardState.SUSPECT) else logging.INFO
        logger.log(level, "shard is now %s", move.state, extra={"fields": fields})
        self._publish()

    def _publish(self) -> None:
        record = shard_record(
            self._saved,
            self._machine.state,
            self._machine.reason,
            now=self._context.clock.wall(),
            log_path=str(self._context.log_folder(self.shard) / NAME),
            next_attempt_at=self._next_attempt_at if self._machine.state is ShardState.FAILED else None,
            peak_rss_bytes=self._peak_rss,
        )
        self._context.publisher.put(keyspace.shard(self._context.node, self.shard), record.encode())

    def _change(self, **fields: object) -> None:
        self._saved = self._saved.model_copy(update=fields)
        self._save()

    def _save(self) -> None:
        self._guarded(lambda: self._context.state.save(self._saved))

    def _guarded(self, write: Callable[[], None]) -> None:
        """A full disk stops no engine: it is said, and the next write tries again."""
        problems = self._context.problems
        try:
            write()
        except OSError as error:
            if "state" not in problems:
                logger.error("cannot write the state of shards", extra={"fields": {"cause": str(error)}})  # noqa: TRY400
            problems["state"] = f"state folder {self._context.config.state_dir}: {error.strerror}; free the disk"
        else:
            problems.pop("state", None)

    def _read_rss(self) -> bool:
        """Whether the peak grew enough to be worth telling."""
        self._rss_read_at = self._context.clock.monotonic()
        if self._engine is None:
            return False
        peak = _peak_rss(self._engine.pid)
        if peak <= self._peak_rss * 1.05:
            return False
        self._peak_rss = peak
        return True


def _saved_process(who: Identity, started_at: float) -> SavedProcess:
    return SavedProcess(pid=who.pid, start_ticks=who.start_ticks, boot_id=who.boot_id, started_at=started_at)


def _peak_rss(pid: int) -> int:
    """Bytes; 0 if the process is gone."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        return 0
    return 0
