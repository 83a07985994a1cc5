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

from llmgw_agent.install.archives import Archives
from llmgw_agent.install.build import Builder
from llmgw_agent.install.collect import remove, running_environments, size_of, superfluous
from llmgw_agent.install.environments import Environment, Environments, read
from llmgw_agent.install.errors import EngineInUseError, InstallError, InstallFailedError, UnknownEngineError
from llmgw_agent.install.node_settings import NodeSettings
from llmgw_agent.install.plan import Wanted, environment_name, want
from llmgw_agent.install.progress import Progress, Step
from llmgw_agent.install.recipes import RECIPES
from llmgw_agent.install.settings import EngineInstall
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

    async def install(self, engine: str, version: str | None, progress: Progress, *, again: bool = False) -> Environment:
        """As an operator asks for it: now, and whatever was tried before. ``again``: also if it is there.

        Raises:
            UnknownEngineError: there is no such engine, or no version is named and set.
            InstallRefusedError, InstallFailedError
        """
        default = self.settings.default(engine)
        if engine not in RECIPES:
            raise _no_engine(engine)
        if (version or default) is None:
            raise UnknownEngineError(f"engine {engine!r}: no version of {engine} is set here; name one")
        settings = await self.settings.find(engine, version) or EngineInstall(version=version or "")
        key = (engine, version or default or "")
        wanted = want(RECIPES[engine], settings, version, self.environments.folder(engine))
        try:
            environment = await self._join(key, wanted, progress, again=again)
        except InstallError as error:
            self._failed[key] = (self._clock.monotonic(), str(error))
            raise
        self._failed.pop(key, None)
        if version in (None, default):
            self._alarm(f"engine {engine}", None)
            with contextlib.suppress(OSError):
                await asyncio.to_thread(self.environments.make_current, environment)
        return environment

    async def remove(self, engine: str, version: str | None) -> tuple[list[str], int]:
        """Removes what is installed of the engine; the versions and their bytes. ``version`` None: all that nobody uses.

        Raises:
            UnknownEngineError: there is no such engine, or it is not installed.
            EngineInUseError: a shard runs from it, or it is being installed.
            InstallFailedError: the disk does not let it go.
        """
        if engine not in RECIPES:
            # Also because the name is that of a folder.
            raise _no_engine(engine)
        if version is not None and (engine, version) in self._jobs:
            raise EngineInUseError(f"engine {engine} {version} is being installed")
        gone, freed = await asyncio.to_thread(self._remove, engine, version)
        for each in gone:
            logger.info("engine removed", extra={"fields": {"engine": engine, "version": each}})
            self._failed.pop((engine, each), None)
        self._changed()
        return gone, freed

    def under_way(self) -> dict[tuple[str, str], Step | None]:
        """How far installations are, by engine and version."""
        return {key: job.last for key, job in self._jobs.items()}

    def failures(self) -> dict[tuple[str, str], str]:
        """Why the last installation failed, by engine and version."""
        return {key: reason for key, (_, reason) in self._failed.items()}

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

    async def _join(self, key: tuple[str, str], wanted: Wanted, progress: Progress, *, again: bool = False) -> Environment:
        job = self._jobs.get(key)
        if job is None:
            job = self._jobs[key] = self._start(key, wanted, again=again)
        job.listeners.append(progress)
        if job.last is not None:
            progress(job.last)
        try:
            # One who waits may give up; the work goes on for the others.
            return await asyncio.shield(job.task)
        finally:
            job.listeners.remove(progress)

    def _start(self, key: tuple[str, str], wanted: Wanted, *, again: bool) -> _Job:
        def tell(step: Step) -> None:
            job.last = step
            for listener in list(job.listeners):
                listener(step)

        def over(task: asyncio.Task[Environment]) -> None:
            self._jobs.pop(key, None)
            if not task.cancelled() and (error := task.exception()) is not None:
                logger.warning("installation failed", extra={"fields": {"engine": wanted.title, "cause": str(error)}})

        builder = Builder(self.environments, self._clock, tell, self._archives)
        job = _Job(asyncio.create_task(self._work(builder, wanted, again=again), name=f"install {wanted.title}"))
        job.task.add_done_callback(over)
        return job

    async def _work(self, builder: Builder, wanted: Wanted, *, again: bool) -> Environment:
        lock = await builder.resolve(wanted)
        engine = wanted.recipe.engine
        path = self.environments.folder(engine) / environment_name(wanted, lock.encode())
        if not again and (there := await asyncio.to_thread(read, path)) is not None:
            return there
        began = self._clock.monotonic()
        environment = await builder.build(wanted, lock, again=again)
        fields = {"engine": wanted.title, "path": str(path), "seconds": round(self._clock.monotonic() - began, 1)}
        logger.info("engine installed", extra={"fields": fields})
        environment.touch()
        await asyncio.to_thread(self._collect, engine)
        self._changed()
        return environment

    def _remove(self, engine: str, version: str | None) -> tuple[list[str], int]:
        known = [each for each in self.environments.all(engine) if version in (None, each.note.version)]
        if not known and version is not None:
            raise UnknownEngineError(f"engine {engine} {version} is not installed; `llmgwctl engine list` shows what is")
        running = running_environments(self.environments.root)
        used = [each for each in known if each.path in running]
        if used and version is not None:
            who = sorted(set().union(*(running[each.path] for each in used))) or ["a process that is no engine"]
            raise EngineInUseError(f"engine {engine} {version} is used by {', '.join(who)}")
        free = [each for each in known if each.path not in running and (engine, each.note.version) not in self._jobs]
        sizes = {each.path: size_of(each.path) for each in free}
        remove(self.environments, engine, free)
        gone = [each for each in free if not each.path.exists()]
        if version is not None and len(gone) < len(free):
            left = next(each.path for each in free if each not in gone)
            raise InstallFailedError(f"engine {engine} {version}: {left} cannot be removed; look at that folder and its disk")
        return [each.note.version for each in gone], sum(sizes[each.path] for each in gone)

    def _collect(self, engine: str) -> None:
        environments, default = self.environments, self.settings.default(engine)
        known = environments.all(engine)
        current = environments.current(engine)
        newest = next((each for each in known if each.note.version == default), None)
        needed = {each.path for each in (current, newest) if each is not None}
        running = running_environments(environments.root) if len(known) > len(needed) else {}
        kept = self.settings.keep(engine)
        keep = kept if kept is not None else len(known)
        gone = superfluous(known, needed, running, keep, self._clock.wall())
        for each in gone:
            logger.info("unused engine removed", extra={"fields": {"engine": engine, "path": str(each.path)}})
        if environments.folder(engine).exists():
            remove(environments, engine, gone)


def _no_engine(name: str) -> UnknownEngineError:
    return UnknownEngineError(f"engine {name!r}: agents install {', '.join(RECIPES)}")
