"""What is to be installed, and under which name. Pure."""

from __future__ import annotations

import hashlib
import json
import platform
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llmgw_agent.install.errors import InstallRefusedError
from llmgw_agent.install.recipes import Programs, Recipe
from llmgw_agent.install.settings import BuildSettings, EngineInstall, valid_version
from llmgw_proto.locks import lock_problem


@dataclass(frozen=True, slots=True)
class Packed:
    """Programs, or with ``build`` their source. ``location`` may be a package on the index; the lock then keeps its digest."""

    location: str
    sha256: str | None
    build: BuildSettings | None


@dataclass(frozen=True, slots=True)
class Wanted:
    """One version of one engine, before its lock is read. ``requirements`` is empty when the lock is given.

    With ``packed`` there are no packages: the lock is then one line that names the archive and all that makes a difference.
    """

    recipe: Recipe
    version: str
    lock: Path
    """Given, or where the resolved one is kept."""
    requirements: tuple[str, ...]
    settings: EngineInstall
    python: str
    packed: Packed | None = None

    @property
    def programs(self) -> Programs:
        """Of an engine that is wanted as a program."""
        assert self.recipe.programs is not None
        return self.recipe.programs

    @property
    def disk(self) -> str:
        """Free space that it needs."""
        if self.settings.disk is not None:
            return self.settings.disk
        if self.packed is not None and self.packed.build is not None:
            return self.programs.build_disk
        return self.recipe.disk

    @property
    def title(self) -> str:
        return f"engine {self.recipe.engine} {self.version}"


def want(recipe: Recipe, settings: EngineInstall, version: str | None, root: Path) -> Wanted:
    """``version``: None for the configured one. ``root``: the folder of this engine.

    Raises:
        InstallRefusedError: the version cannot be had with this configuration.
    """
    wanted = version or settings.version
    python = settings.python or sys.executable
    try:
        valid_version(wanted)
    except ValueError as error:
        raise InstallRefusedError(f"engine {recipe.engine}: version {error}") from error
    if settings.archive is not None or settings.build is not None:
        return _want_programs(recipe, settings, wanted, root, python)
    if settings.lock is not None:
        if wanted != settings.version:
            raise InstallRefusedError(
                f"engine {recipe.engine} {wanted} is wanted, and this node's lock {settings.lock} is for {settings.version}; "
                f"give engines.install.{recipe.engine} a lock for {wanted}, or wish {settings.version}"
            )
        return Wanted(recipe, wanted, settings.lock, (), settings, python)
    templates = settings.requirements or [f"{recipe.package}=={{version}}"]
    if wanted != settings.version and not any("{version}" in each for each in templates):
        raise InstallRefusedError(
            f"engine {recipe.engine} {wanted} is wanted, and engines.install.{recipe.engine}.requirements name another one; "
            "write {version} in them where the version belongs"
        )
    requirements = tuple(each.replace("{version}", wanted) for each in templates)
    inputs = [requirements, settings.overrides, settings.find_links, settings.index, settings.extra_indexes, python]
    kept = root / "locks" / f"{wanted}-{_digest(json.dumps(inputs).encode())}.txt"
    return Wanted(recipe, wanted, kept, requirements, settings, python)


def _want_programs(recipe: Recipe, settings: EngineInstall, wanted: str, root: Path, python: str) -> Wanted:
    if recipe.programs is None:
        raise InstallRefusedError(
            f"engine {recipe.engine} is made of packages; remove archive and build from engines.install.{recipe.engine}, and "
            "name its packages in lock or requirements"
        )
    if settings.archive is None:
        packed = Packed(recipe.programs.package, settings.sha256 if wanted == settings.version else None, settings.build)
    elif wanted == settings.version:
        packed = Packed(settings.archive, settings.sha256, settings.build)
    else:
        raise InstallRefusedError(
            f"engine {recipe.engine} {wanted} is wanted, and this node's archive is for {settings.version}; name one for "
            f"{wanted} with its sha256 under engines.install.{recipe.engine}.version_overrides, or wish {settings.version}"
        )
    inputs = [packed.location, packed.sha256, settings.index, settings.find_links]
    kept = root / "locks" / f"{wanted}-{_digest(json.dumps(inputs).encode())}.txt"
    return Wanted(recipe, wanted, kept, (), settings, python, packed)


def packed_lock(wanted: Wanted, location: str, sha256: str) -> str:
    """All that the environment is made from; see :func:`environment_name`."""
    packed = wanted.packed
    assert packed is not None
    how = ["build", *wanted.programs.options, *packed.build.options] if packed.build is not None else ["programs"]
    return f"{location} --hash=sha256:{sha256}\n# {' '.join(how)}\n"


def read_packed_lock(wanted: Wanted, lock: str) -> tuple[str, str]:
    """Address or path, and sha256. Raises InstallRefusedError."""
    match = re.match(r"(\S+) --hash=sha256:([0-9a-f]{64})$", lock, re.MULTILINE)
    if match is None:
        raise InstallRefusedError(f"{wanted.title}: lock {wanted.lock} is damaged; delete it, and it is made again")
    return match[1], match[2]


def environment_name(wanted: Wanted, lock: bytes) -> str:
    """Names the environment that this lock makes on this kind of machine: ``<version>-<digest>``."""
    return f"{wanted.version}-{_digest(lock + f'{wanted.python} {platform.machine()}'.encode())}"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


_PINNED = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?\s*(?:==|@)", re.MULTILINE)


def count_packages(lock: str) -> int:
    return len(_PINNED.findall(lock))


def check_lock(wanted: Wanted, lock: str) -> None:
    """Raises InstallRefusedError if there is nothing in it, or a package without a hash."""
    if (problem := lock_problem(lock)) is not None:
        raise InstallRefusedError(f"{wanted.title}: lock {wanted.lock} {problem}")


def sources(settings: EngineInstall) -> list[str]:
    """uv's arguments that say where packages come from."""
    found = [argument for each in settings.find_links for argument in ("--find-links", each)]
    if settings.offline:
        return [*found, "--offline", "--no-index"]
    found += [argument for each in settings.extra_indexes for argument in ("--index", each)]
    return found + (["--default-index", settings.index] if settings.index else [])


def compile_arguments(wanted: Wanted, requirements: Path, overrides: Path | None, output: Path) -> list[str]:
    """For uv, to resolve the requirements into a lock."""
    arguments = ["pip", "compile", str(requirements), "--generate-hashes", "--no-header", "--quiet"]
    arguments += ["--python", wanted.python, "--output-file", str(output), *sources(wanted.settings)]
    return arguments + (["--override", str(overrides)] if overrides is not None else [])


def venv_arguments(wanted: Wanted, folder: Path) -> list[str]:
    # It is built under another name than it is used by.
    return ["venv", "--relocatable", "--no-project", "--python", wanted.python, str(folder)]


def install_arguments(wanted: Wanted, lock: Path, python: Path) -> list[str]:
    # The lock is the whole closure; asking packages for what they want again would undo its overrides.
    arguments = ["pip", "install", "--python", str(python), "--no-deps", "--require-hashes", "-r", str(lock)]
    return arguments + sources(wanted.settings)


def masked(arguments: Sequence[str]) -> list[str]:
    """Without the passwords in addresses, for logs."""
    return [re.sub(r"(://[^/@\s:]+):[^/@\s]+@", r"\1:***@", each) for each in arguments]
