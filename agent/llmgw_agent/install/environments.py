"""The environments that are on disk: ``<root>/<engine>/<version>-<digest>/``, each with a note about itself.

``current`` beside them is a link to the one that is used when no version is asked for. Folders whose names start with a dot
are unfinished or on their way out.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from llmgw_agent.engines.base import Located
from llmgw_agent.install.recipes import RECIPES

NOTE = "llmgw-installed.json"
USED = ".llmgw-used"
CURRENT = "current"


@dataclass(frozen=True, slots=True)
class Note:
    """Written as the last thing into an environment that passed its smoke test."""

    engine: str
    version: str
    found_version: str
    """What the installed package says about itself."""
    devices: str
    installed_at: float
    program: str = ""
    """Path inside the environment of the engine's own program; empty: it runs in the environment's Python."""
    lock: str = ""
    """sha256 of the lock that it was made from."""


@dataclass(frozen=True, slots=True)
class Environment:
    path: Path
    note: Note

    @property
    def python(self) -> Path:
        return self.path / "bin" / "python"

    @property
    def program(self) -> Path:
        """What is started: the engine's own program, else Python."""
        return self.path / self.note.program if self.note.program else self.python

    @property
    def located(self) -> Located:
        """Under the version by which it is wished: a program may call itself otherwise."""
        note = self.note
        argv = (str(self.program), *(() if note.program else RECIPES[note.engine].arguments))
        version = note.version if note.program else note.found_version
        return Located(version, f"environment {self.path.name}, {note.devices}", argv, self.path)

    def touch(self) -> None:
        """Remembers that it was used now, so that it is not collected while an engine starts from it."""
        with contextlib.suppress(OSError):
            (self.path / USED).touch()

    @property
    def used_at(self) -> float:
        """Unix time."""
        try:
            return (self.path / USED).stat().st_mtime
        except OSError:
            return self.note.installed_at


class Environments:
    """Reads small files only."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, engine: str) -> Path:
        return self.root / engine

    def all(self, engine: str) -> list[Environment]:
        """The newest first."""
        try:
            names = [each for each in self.folder(engine).iterdir() if not each.name.startswith(".") and each.name != CURRENT]
        except OSError:
            return []
        found = [each for each in map(read, names) if each is not None and each.note.engine == engine]
        return sorted(found, key=lambda each: each.note.installed_at, reverse=True)

    def current(self, engine: str) -> Environment | None:
        return read((self.folder(engine) / CURRENT).resolve())

    def find(self, engine: str, version: str | None) -> Environment | None:
        """The current one if it is of that version (or none is named), else the newest that is."""
        current = self.current(engine)
        if current is not None and version in (None, current.note.version):
            return current
        return next((each for each in self.all(engine) if version in (None, each.note.version)), None)

    def make_current(self, environment: Environment) -> None:
        """In one step: there is always one or the other. Raises OSError."""
        link = self.folder(environment.note.engine) / CURRENT
        if link.is_symlink() and link.resolve() == environment.path.resolve():
            return
        fresh = link.with_name(f".{CURRENT}-{os.getpid()}")
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(environment.path.name)
        fresh.replace(link)


def read(path: Path) -> Environment | None:
    """None if there is no whole environment at ``path``."""
    try:
        data = json.loads((path / NOTE).read_text())
        engine, version, found, devices = (str(data[name]) for name in ("engine", "version", "found_version", "devices"))
        more = (str(data.get("program") or ""), str(data.get("lock") or ""))
        note = Note(engine, version, found, devices, float(data["installed_at"]), *more)
    except (OSError, ValueError, TypeError, KeyError):
        return None
    environment = Environment(path, note)
    return environment if note.engine in RECIPES and environment.program.exists() else None


def write_note(path: Path, note: Note) -> None:
    """Raises OSError."""
    with (path / NOTE).open("w") as file:
        json.dump(asdict(note), file)
        file.flush()
        os.fsync(file.fileno())
