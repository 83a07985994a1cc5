"""Builds one environment beside the others and puts it in place in one step; whatever fails before that changes nothing."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from llmgw_agent.install import compile as from_source
from llmgw_agent.install import packages, programs
from llmgw_agent.install.archives import Archives
from llmgw_agent.install.bench import Bench
from llmgw_agent.install.environments import Environment, Environments, Note, read, write_note
from llmgw_agent.install.errors import InstallFailedError, InstallRefusedError
from llmgw_agent.install.index import find_source_package
from llmgw_agent.install.locks import Lock
from llmgw_agent.install.plan import Wanted, check_lock, environment_name, packed_lock, read_packed_lock
from llmgw_agent.install.progress import Phase, Progress, Step
from llmgw_agent.install.smoke import Found
from llmgw_base.clock import Clock
from llmgw_proto.records.model import parse_bytes


@dataclass(slots=True)
class Builder:
    environments: Environments
    clock: Clock
    progress: Progress
    archives: Archives = field(default_factory=Archives)

    async def resolve(self, wanted: Wanted) -> str:
        """Returns the lock; resolves the requirements and keeps the result if there is none yet.

        Raises:
            InstallRefusedError, InstallFailedError: there is none, or none can be made.
        """
        if wanted.packed is not None and wanted.packed.sha256 is not None and wanted.packed.location.startswith(("/", "http")):
            return packed_lock(wanted, wanted.packed.location, wanted.packed.sha256)
        if wanted.lock.exists() or (wanted.packed is None and not wanted.requirements):
            text = await asyncio.to_thread(_read_lock, wanted)
        else:
            async with self._bench(wanted, wanted.lock.stem) as bench:
                try:
                    if wanted.lock.exists():
                        text = await asyncio.to_thread(_read_lock, wanted)
                    else:
                        text = await self._find_source(bench) if wanted.packed is not None else await packages.resolve(bench)
                except OSError as error:
                    raise InstallFailedError(
                        f"{wanted.title}: its lock cannot be made in {bench.folder}: {error.strerror}"
                    ) from error
        check_lock(wanted, text)
        return packed_lock(wanted, *read_packed_lock(wanted, text)) if wanted.packed is not None else text

    async def build(self, wanted: Wanted, lock_text: str, *, again: bool = False) -> Environment:
        """Returns the environment at its place, built unless it is there. ``again``: in any case.

        Raises:
            InstallRefusedError, InstallFailedError: it cannot be.
        """
        name = environment_name(wanted, lock_text.encode())
        target = self._folder(wanted) / name
        async with self._bench(wanted, name, fresh=again) as bench:
            if not again and (there := read(target)) is not None:
                return there
            self._check_disk(wanted)
            building = target.with_name(f".building-{name}")
            try:
                # Left by an installation that was killed.
                await asyncio.to_thread(shutil.rmtree, building, ignore_errors=True)
                found = await self._fill(bench, lock_text, building)
                bench.tell(Phase.SWITCHING, 0.99)
                return self._finish(wanted, lock_text, found, building, target)
            except OSError as error:
                raise InstallFailedError(f"{wanted.title} cannot be written to {target}: {error.strerror}") from error
            finally:
                await asyncio.to_thread(shutil.rmtree, building, ignore_errors=True)

    # --- steps --------------------------------------------------------------------------------------------------------

    async def _fill(self, bench: Bench, lock: str, building: Path) -> Found:
        packed = bench.wanted.packed
        if packed is None:
            return await packages.install(bench, lock, building)
        location, sha256 = read_packed_lock(bench.wanted, lock)
        if packed.build is not None:
            return await from_source.install(bench, location, sha256, building)
        return await programs.install(bench, location, sha256, building)

    async def _find_source(self, bench: Bench) -> str:
        """Asks the index once for the source package; what it says of the digest is kept."""
        wanted = bench.wanted
        bench.tell(Phase.RESOLVING, 0.01)
        location, sha256 = await find_source_package(wanted)
        output = wanted.lock.with_name(f".{wanted.lock.name}")
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(f"{location} --hash=sha256:{sha256}\n")
        return packages.keep_lock(output, wanted.lock)

    def _finish(self, wanted: Wanted, lock: str, found: Found, building: Path, target: Path) -> Environment:
        note = Note(
            wanted.recipe.engine,
            wanted.version,
            found.version,
            found.devices,
            self.clock.wall(),
            found.program,
            hashlib.sha256(lock.encode()).hexdigest(),
        )
        environment = _put_in_place(building, target, note)
        if environment is None:
            raise InstallFailedError(f"{wanted.title}: {target} is gone as soon as it was made; something else writes there")
        return environment

    # --- small --------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _bench(self, wanted: Wanted, name: str, *, fresh: bool = False) -> AsyncIterator[Bench]:
        """The work on what is called ``name``, which nobody else does meanwhile."""
        folder = self._folder(wanted)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = Lock(folder / f".{name}.lock")
        except OSError as error:
            raise InstallFailedError(f"{wanted.title}: {folder} cannot be written: {error.strerror}") from error
        with lock:
            while not lock.take():
                waits = "another installation of the same is under way"
                self.progress(Step(wanted.title, Phase.WAITING, 0.0, waits))
                await self.clock.sleep(0.2)
            yield Bench(wanted, folder, self.environments.root / ".cache", self.archives, lock, self.progress, fresh)

    def _check_disk(self, wanted: Wanted) -> None:
        need, folder = parse_bytes(wanted.disk), self._folder(wanted)
        free = shutil.disk_usage(folder).free
        if free < need:
            raise InstallFailedError(
                f"{wanted.title} needs about {need} bytes of disk, {folder} has {free} free; free space there, or lower "
                f"engines.install.{wanted.recipe.engine}.disk if this version is smaller"
            )

    def _folder(self, wanted: Wanted) -> Path:
        return self.environments.folder(wanted.recipe.engine)


def _read_lock(wanted: Wanted) -> str:
    try:
        return wanted.lock.read_text()
    except (OSError, ValueError) as error:
        cause = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InstallRefusedError(f"{wanted.title}: lock {wanted.lock} cannot be read: {cause}; put it there") from error


def _put_in_place(building: Path, target: Path, note: Note) -> Environment | None:
    write_note(building, note)
    # What is there was never whole, or is built again. Engines that run from it go on: the new one has the same content.
    old = target.with_name(f".trash-{target.name}")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        target.rename(old)
    building.rename(target)
    shutil.rmtree(old, ignore_errors=True)
    return read(target)
