"""All workers of the node: who exists, who hears what, and how they end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any

from llmgw_agent.engines.kv_event_flags import prune_sockets
from llmgw_agent.logs.files import prune
from llmgw_agent.process.scan import Marked
from llmgw_agent.shard.context import Context
from llmgw_agent.shard.engine import end_home, end_leftovers
from llmgw_agent.shard.recover import Found, rebuild
from llmgw_agent.shard.worker import Legacy, Worker
from llmgw_base.secrets import engine_key
from llmgw_proto.records import AssignmentRecord

FAULT_PAUSE = 10.0
logger = logging.getLogger(__name__)


class Supervisor:
    """The sink of the wishes. Owns every worker's task; end it with :meth:`close`."""

    def __init__(self, context: Context, found: Found) -> None:
        self._context, self._found = context, found
        self._secret = ""
        self._workers: dict[str, Worker] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._closing = False
        for shard, saved in found.saved.items():
            self._start(shard, Legacy(saved, found.take_orphans(shard), found.writers))

    def set_secret(self, cluster_secret: str) -> None:
        """Must come before the first wish."""
        self._secret = cluster_secret

    def rediscover(self, found: Found) -> None:
        """Replaces what was found at the start, now that it is known which cluster's marks to look for."""
        self._found = Found(writers=found.writers)
        self._found.marked = {shard: marked for shard, marked in found.marked.items() if shard not in self._workers}

    @property
    def shards(self) -> set[str]:
        return set(self._workers)

    def worker(self, shard: str) -> Worker | None:
        """Who owns the shard; None if it is not here."""
        return self._workers.get(shard)

    @property
    def known(self) -> set[str]:
        """Shards that have, or may turn out to have, something that runs."""
        return self.shards | set(self._found.marked)

    async def recovered(self) -> None:
        """Returns when it is known of every shard from before what of it still runs."""
        for worker in list(self._workers.values()):
            await worker.recovered.wait()

    # --- the sink -----------------------------------------------------------------------------------------------------

    def wish(self, assignment: AssignmentRecord) -> None:
        shard = assignment.shard
        if self._closing:
            return
        if shard not in self._workers:
            self._start(shard, self._adoptable(assignment))
        self._workers[shard].wish(assignment, self._secret)

    def gone(self, shard: str) -> None:
        if (worker := self._workers.get(shard)) is not None:
            worker.gone()

    def complete(self, shards: set[str]) -> None:
        for shard in self._workers.keys() - shards:
            self._workers[shard].gone()
        for shard in list(self._found.marked):
            if shard not in shards:
                self._end_orphans(shard, self._found.take_orphans(shard))
        self._end_strangers(shards | self.known)
        self._context.publisher.allow_sweep()
        self._prune()

    # --- the end ------------------------------------------------------------------------------------------------------

    async def close(self, *, stop_engines: bool, drain: float = 0.0) -> None:
        """Cancels all workers; then either ends all engines, or leaves them as they are."""
        self._closing = True
        for task in [*self._tasks.values(), *self._ending]:
            task.cancel()
        await asyncio.gather(*self._tasks.values(), *self._ending, return_exceptions=True)
        workers = self._workers.values()
        ends = [worker.stop(drain) if stop_engines else worker.release() for worker in workers]
        for result in await asyncio.gather(*ends, return_exceptions=True):
            if isinstance(result, BaseException):
                logger.error("a shard did not end well", exc_info=result)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _start(self, shard: str, legacy: Legacy | None) -> None:
        worker = Worker(self._context, shard, legacy)
        self._workers[shard] = worker
        self._tasks[shard] = asyncio.create_task(self._run(shard, worker), name=f"shard-{shard}")

    async def _run(self, shard: str, worker: Worker) -> None:
        while not worker.closed:
            try:
                await worker.run()
            except Exception:
                logger.exception("fault in the worker of shard %s; it goes on in %g s", shard, FAULT_PAUSE)
                await self._context.clock.sleep(FAULT_PAUSE)
        # No await since the worker closed: a wish that comes from now on finds no worker and starts a new one.
        del self._workers[shard], self._tasks[shard]
        self._prune()

    def _adoptable(self, assignment: AssignmentRecord) -> Legacy | None:
        """For a shard without a state file: a running process that fulfils the wish, if there is one."""
        marked = self._found.take_orphans(assignment.shard)
        if not marked:
            return None
        context = self._context
        key = engine_key(self._secret, assignment.replica, assignment.epoch)
        saved = rebuild(context.node, assignment, key, context.config.engine_host, marked, context.clock.wall())
        if saved is None:
            self._end_orphans(assignment.shard, marked)
            return None
        return Legacy(saved, marked, self._found.writers)

    def _end_orphans(self, shard: str, marked: Sequence[Marked]) -> None:
        logger.warning("ending processes that nobody wishes", extra={"fields": {"shard": shard, "processes": len(marked)}})
        context = self._context
        homes = context.isolation.homes(context.owner, shard)
        # A wish may have the shard started anew while they end.
        attempts = {each.marker.attempt for each in marked}
        logs = context.log_folder(shard)
        self._begin(f"orphans-{shard}", end_leftovers(context.owner, shard, homes, logs, context.clock, 5, attempts))

    def _end_strangers(self, known: set[str]) -> None:
        """Ends what lives in homes of engines that nobody knows or wishes: its marks and its state file are lost."""
        context = self._context
        for home in context.isolation.homes(context.owner):
            if any(home.belongs_to(shard) for shard in known) or home.name in {task.get_name() for task in self._ending}:
                continue
            logger.warning("ending an engine that nobody wishes", extra={"fields": {"home": home.name}})
            self._begin(home.name, end_home(home, context.clock, 5))

    def _begin(self, name: str, ending: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(ending, name=name)
        self._ending.add(task)
        task.add_done_callback(self._orphans_ended)

    def _orphans_ended(self, task: asyncio.Task[None]) -> None:
        self._ending.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("processes that nobody wishes are still there: %s", error)

    def _prune(self) -> None:
        config = self._context.config
        living = {self._context.log_folder(shard).name for shard in self._workers}
        prune(config.state_dir / "logs", living, config.logs.keep_removed)
        prune_sockets(self._context.kv_folder, self._workers)
