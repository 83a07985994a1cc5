"""Provides engines: what is there already, what is being installed, or what has to be installed now.

However many shards want the same environment, it is built once; all of them see how far it is. An installation goes on when
nobody waits any more, since the wish may come back; it ends with the agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from llmgw_agent.install.archives import Archives
from llmgw_agent.install.build import Builder
from llmgw_agent.install.collect import remove, running_environments, superfluous
from llmgw_agent.install.environments import Environment, Environments, read
from llmgw_agent.install.errors import InstallError
from llmgw_agent.install.node_settings import NodeSettings
from llmgw_agent.install.plan import Wanted, environment_name, want
from llmgw_agent.install.progress import Progress, Step
from llmgw_agent.install.recipes import RECIPES
from llmgw_base.clock import Clock

#: With an older version to go on with, a failed installation is not tried again at each restart of an engine.
RETRY_SECONDS = 600.0
logger = logging.getLogger(__name__)

Alarm = Callable[[str, str | None], None]
"""Told (subject, what is wrong), and (subject, None) when it is well again."""


@dataclass(slots=True)
class _Job:
    task: asyncio.Task[Environment]
    listeners: list[Progress] = field(default_factory=list)
    last: Step | None = None


class Installer:
    """``alarm`` hears of failed installations that an older version hides, ``changed`` of each that ended well."""

    def __init__(
        self,
        environments: Environments,
        settings: NodeSettings,
        clock: Clock,
        alarm: Alarm = lambda _subject, _text: None,
        archives: Archives | None = None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.environments, self.settings = environments, settings
        self._clock, self._alarm, self._changed = clock, alarm, changed
        self._archives = archives or Archives()
        self._jobs: dict[tuple[str, str], _Job] = {}
        self._failed: dict[tuple[str, str], tuple[float, str]] = {}

    async def provide(self, engine: str, version: str | None, progress: Progress) -> Environment | None:
        """The environment to run the engine from; installs it if need be. None: it is neither there nor configured.

        ``version``: None for the configured one. Then, if that cannot be installed, the one that was used last serves on.

        Raises:
            InstallRefusedError, InstallFailedError: it cannot be installed and there is no other.
        """
        environment = await self._provide(engine, version, progress)
        if environment is not None:
            environment.touch()
        return environment

    async def clean(self) -> None:
        """Removes environments that are not needed any more, and what killed installations left."""
        for engine in RECIPES:
            await asyncio.to_thread(self._collect, engine)

    async def close(self) -> None:
        """Ends what is under way, with all its processes."""
        tasks = [job.task for job in self._jobs.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- inside -------------------------------------------------------------------------------------------------------

    async def _provide(self, engine: str, version: str | None, progress: Progress) -> Environment | None:
        environments = self.environments
        if engine not in RECIPES:
            return None
        fallback = await asyncio.to_thread(environments.find, engine, version)
        default = self.settings.default(engine)
        if (version or default) is None:
            return fallback
        configured = version is None or version == default
        key = (engine, version or default or "")
        failed_at, reason = self._failed.get(key, (float("-inf"), ""))
        if fallback is not None and self._clock.monotonic() - failed_at < RETRY_SECONDS:
            return fallback
        try:
            settings = await self.settings.find(engine, version)
            if settings is None:
                return fallback
            wanted = want(RECIPES[engine], settings, version, environments.folder(engine))
            environment = await self._join(key, wanted, progress)
        except InstallError as error:
            if fallback is None:
                raise
            self._failed[key] = (self._clock.monotonic(), str(error))
            reason = f"{error}; {engine} {fallback.note.version} is used meanwhile"
            logger.error("engine cannot be installed", extra={"fields": {"engine": engine, "cause": reason}})  # noqa: TRY400
            self._alarm(f"engine {engine}", reason)
            return fallback
        self._failed.pop(key, None)
        if configured:
            self._alarm(f"engine {engine}", None)
            # The environment serves without the link too; it only matters when a later version cannot be installed.
            with contextlib.suppress(OSError):
                await asyncio.to_thread(environments.make_current, environment)
        return environment

    async def _join(self, key: tuple[str, str], wanted: Wanted, progress: Progress) -> Environment:
        job = self._jobs.get(key)
        if job is None:
            job = self._jobs[key] = self._start(key, wanted)
        job.listeners.append(progress)
        if job.last is not None:
            progress(job.last)
        try:
            # One who waits may give up; the work goes on for the others.
            return await asyncio.shield(job.task)
        finally:
            job.listeners.remove(progress)

    def _start(self, key: tuple[str, str], wanted: Wanted) -> _Job:
        def tell(step: Step) -> None:
            job.last = step
            for listener in list(job.listeners):
                listener(step)

        def over(task: asyncio.Task[Environment]) -> None:
            self._jobs.pop(key, None)
            if not task.cancelled() and (error := task.exception()) is not None:
                logger.warning("installation failed", extra={"fields": {"engine": wanted.title, "cause": str(error)}})

        builder = Builder(self.environments, self._clock, tell, self._archives)
        job = _Job(asyncio.create_task(self._work(builder, wanted), name=f"install {wanted.title}"))
        job.task.add_done_callback(over)
        return job

    async def _work(self, builder: Builder, wanted: Wanted) -> Environment:
        lock = await builder.resolve(wanted)
        engine = wanted.recipe.engine
        path = self.environments.folder(engine) / environment_name(wanted, lock.encode())
        if (there := await asyncio.to_thread(read, path)) is not None:
            return there
        began = self._clock.monotonic()
        environment = await builder.build(wanted, lock)
        fields = {"engine": wanted.title, "path": str(path), "seconds": round(self._clock.monotonic() - began, 1)}
        logger.info("engine installed", extra={"fields": fields})
        environment.touch()
        await asyncio.to_thread(self._collect, engine)
        self._changed()
        return environment

    def _collect(self, engine: str) -> None:
        environments, default = self.environments, self.settings.default(engine)
        known = environments.all(engine)
        current = environments.current(engine)
        newest = next((each for each in known if each.note.version == default), None)
        needed = {each.path for each in (current, newest) if each is not None}
        running: set[Path] = running_environments(environments.root) if len(known) > len(needed) else set()
        kept = self.settings.keep(engine)
        keep = kept if kept is not None else len(known)
        gone = superfluous(known, needed, running, keep, self._clock.wall())
        for each in gone:
            logger.info("unused engine removed", extra={"fields": {"engine": engine, "path": str(each.path)}})
        if environments.folder(engine).exists():
            remove(environments, engine, gone)
