"""Builds one environment beside the others and puts it in place in one step; whatever fails before that changes nothing."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from llmgw_agent.install import smoke
from llmgw_agent.install.environments import Environment, Environments, Note, read, write_note
from llmgw_agent.install.errors import InstallFailedError, InstallRefusedError
from llmgw_agent.install.explain import explain
from llmgw_agent.install.locks import Lock
from llmgw_agent.install.plan import (
    Wanted,
    check_lock,
    compile_arguments,
    count_packages,
    environment_name,
    install_arguments,
    venv_arguments,
)
from llmgw_agent.install.progress import Downloads, Phase, Progress, Step
from llmgw_agent.install.run import Done, environment, find_uv, run
from llmgw_base.clock import Clock
from llmgw_proto.records.model import parse_bytes

SMOKE_SECONDS = 600.0
#: Of the whole installation's progress.
DOWNLOADS_SHARE = 0.65
_TELLING = ("Downloading ", "Downloaded ", "Building ", "Built ", "Prepared ", "Resolved ", "Installed ", "Preparing ")


@dataclass(slots=True)
class Builder:
    environments: Environments
    clock: Clock
    progress: Progress

    async def resolve(self, wanted: Wanted) -> str:
        """Returns the lock; resolves the requirements and keeps the result if there is none yet.

        Raises:
            InstallRefusedError, InstallFailedError: there is none, or none can be made.
        """
        if wanted.lock.exists() or not wanted.requirements:
            text = await asyncio.to_thread(_read_lock, wanted)
        else:
            async with self._locked(wanted, wanted.lock.stem) as lock:
                text = (
                    await asyncio.to_thread(_read_lock, wanted) if wanted.lock.exists() else await self._compile(wanted, lock)
                )
        check_lock(wanted, text)
        return text

    async def build(self, wanted: Wanted, lock_text: str) -> Environment:
        """Returns the environment at its place, built unless it is there.

        Raises:
            InstallRefusedError, InstallFailedError: it cannot be.
        """
        name = environment_name(wanted, lock_text.encode())
        target = self._folder(wanted) / name
        async with self._locked(wanted, name) as lock:
            if (there := read(target)) is not None:
                return there
            self._check_disk(wanted)
            building = target.with_name(f".building-{name}")
            try:
                return await self._build(wanted, lock_text, building, target, lock)
            except OSError as error:
                raise InstallFailedError(f"{wanted.title} cannot be written to {target}: {error.strerror}") from error
            finally:
                await asyncio.to_thread(shutil.rmtree, building, ignore_errors=True)

    # --- steps --------------------------------------------------------------------------------------------------------

    async def _compile(self, wanted: Wanted, lock: Lock) -> str:
        self._tell(wanted, Phase.RESOLVING, 0.02)
        with tempfile.TemporaryDirectory(prefix=".resolving-", dir=self._folder(wanted)) as scratch:
            inputs, overrides, output = _write_inputs(Path(scratch), wanted)
            await self._uv(wanted, compile_arguments(wanted, inputs, overrides, output), lock, Phase.RESOLVING, 0.02)
            return _keep_lock(output, wanted.lock)

    async def _build(self, wanted: Wanted, text: str, building: Path, target: Path, lock: Lock) -> Environment:
        # Left by an installation that was killed.
        await asyncio.to_thread(shutil.rmtree, building, ignore_errors=True)
        self._tell(wanted, Phase.INSTALLING, 0.1, f"{count_packages(text)} packages")
        await self._uv(wanted, venv_arguments(wanted, building), lock, Phase.INSTALLING, 0.1)
        python, pinned = building / "bin" / "python", building / "llmgw-lock.txt"
        # What was checked is what is installed, whatever happens to the file meanwhile.
        pinned.write_text(text)
        await self._uv(wanted, install_arguments(wanted, pinned, python), lock, Phase.INSTALLING, 0.15)
        self._tell(wanted, Phase.TESTING, 0.85)
        argv = [str(python), *smoke.arguments(wanted)]
        found = smoke.judge(wanted, await self._run(wanted, argv, lock, SMOKE_SECONDS))
        self._tell(wanted, Phase.SWITCHING, 0.99)
        note = Note(wanted.recipe.engine, wanted.version, found.version, found.devices, self.clock.wall())
        environment = _put_in_place(building, target, note)
        if environment is None:
            raise InstallFailedError(f"{wanted.title}: {target} is gone as soon as it was made; something else writes there")
        return environment

    async def _uv(self, wanted: Wanted, arguments: list[str], lock: Lock, phase: Phase, fraction: float) -> None:
        downloads = Downloads()

        def on_line(line: str) -> None:
            downloads.hear(line)
            if line.strip().startswith(_TELLING):
                self._tell(wanted, phase, fraction + DOWNLOADS_SHARE * downloads.fraction, line.strip()[:120])

        done = await self._run(wanted, [*find_uv(), *arguments], lock, wanted.settings.timeout_seconds, on_line)
        if done.status != 0:
            reason = explain(done.status, done.lines)
            kind = InstallRefusedError if reason.final else InstallFailedError
            raise kind(f"{wanted.title} cannot be installed: {reason.text} (log: {self._log(wanted)})")

    async def _run(
        self, wanted: Wanted, argv: list[str], lock: Lock, limit: float, on_line: Callable[[str], None] = lambda _: None
    ) -> Done:
        cache = self.environments.root / ".cache"
        return await run(argv, environment(cache), self._log(wanted), limit=limit, hold=lock.fd, on_line=on_line)

    # --- small --------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _locked(self, wanted: Wanted, name: str) -> AsyncIterator[Lock]:
        folder = self._folder(wanted)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = Lock(folder / f".{name}.lock")
        except OSError as error:
            raise InstallFailedError(f"{wanted.title}: {folder} cannot be written: {error.strerror}") from error
        with lock:
            while not lock.take():
                self._tell(wanted, Phase.WAITING, 0.0, "another installation of the same is under way")
                await self.clock.sleep(0.2)
            yield lock

    def _check_disk(self, wanted: Wanted) -> None:
        need, folder = parse_bytes(wanted.settings.disk), self._folder(wanted)
        free = shutil.disk_usage(folder).free
        if free < need:
            raise InstallFailedError(
                f"{wanted.title} needs about {need} bytes of disk, {folder} has {free} free; free space there, or lower "
                f"engines.install.{wanted.recipe.engine}.disk if this version is smaller"
            )

    def _folder(self, wanted: Wanted) -> Path:
        return self.environments.folder(wanted.recipe.engine)

    def _log(self, wanted: Wanted) -> Path:
        return self._folder(wanted) / f"{wanted.version}.log"

    def _tell(self, wanted: Wanted, phase: Phase, fraction: float, text: str = "") -> None:
        self.progress(Step(wanted.title, phase, fraction, text))


def _read_lock(wanted: Wanted) -> str:
    try:
        return wanted.lock.read_text()
    except (OSError, ValueError) as error:
        cause = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InstallRefusedError(f"{wanted.title}: lock {wanted.lock} cannot be read: {cause}; put it there") from error


def _write_inputs(scratch: Path, wanted: Wanted) -> tuple[Path, Path | None, Path]:
    """The files of requirements and of overrides, and where the lock is to go."""
    requirements, overrides = scratch / "requirements.txt", scratch / "overrides.txt"
    requirements.write_text("\n".join(wanted.requirements) + "\n")
    overrides.write_text("\n".join(wanted.settings.overrides) + "\n")
    return requirements, overrides if wanted.settings.overrides else None, scratch / "lock.txt"


def _keep_lock(output: Path, kept: Path) -> str:
    text = output.read_text()
    kept.parent.mkdir(parents=True, exist_ok=True)
    output.replace(kept)
    return text


def _put_in_place(building: Path, target: Path, note: Note) -> Environment | None:
    write_note(building, note)
    # What is there has no note: it was never whole.
    shutil.rmtree(target, ignore_errors=True)
    building.rename(target)
    return read(target)
