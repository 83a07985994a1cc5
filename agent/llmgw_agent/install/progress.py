"""What whoever waits for an installation gets to see."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    WAITING = "waiting"
    RESOLVING = "resolving"
    FETCHING = "fetching"
    UNPACKING = "unpacking"
    BUILDING = "building"
    INSTALLING = "installing packages"
    TESTING = "testing"
    SWITCHING = "switching"


@dataclass(frozen=True, slots=True)
class Step:
    """``fraction`` of the whole, 0 to 1, as well as it is known."""

    title: str
    phase: Phase
    fraction: float
    text: str = ""

    def __str__(self) -> str:
        said = f": {self.text}" if self.text else ""
        return f"installing {self.title}, {self.fraction:.0%}, {self.phase}{said}"


Progress = Callable[[Step], None]

_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "B": 1}
_BEGUN = re.compile(r"\s*Downloading (\S+) \(([\d.]+)\s*([KMG]?i?B)\)")
_DONE = re.compile(r"\s*Downloaded (\S+)")


class Downloads:
    """How much of what uv announced has come, from the lines that it writes."""

    def __init__(self) -> None:
        self._sizes: dict[str, float] = {}
        self._come: set[str] = set()

    def hear(self, line: str) -> None:
        if (begun := _BEGUN.match(line)) is not None:
            self._sizes[begun[1]] = float(begun[2]) * _UNITS.get(begun[3], 1)
        elif (done := _DONE.match(line)) is not None:
            self._come.add(done[1])

    @property
    def fraction(self) -> float:
        """0 to 1; 0 while nothing is known."""
        total = sum(self._sizes.values())
        return sum(size for name, size in self._sizes.items() if name in self._come) / total if total else 0.0


_PERCENT = re.compile(r"\[\s*(\d{1,3})%\]|\[(\d+)/(\d+)\]")


def built(line: str) -> float | None:
    """How far a build is by a line of make (``[ 42%] Building …``) or ninja (``[17/40] Building …``), 0 to 1."""
    found = _PERCENT.match(line.strip())
    if found is None:
        return None
    if found[1] is not None:
        return min(1.0, int(found[1]) / 100)
    return min(1.0, int(found[2]) / int(found[3])) if int(found[3]) else None
