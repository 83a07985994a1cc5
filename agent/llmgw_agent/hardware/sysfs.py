"""Reading a sysfs tree, the real one or a copy: what cannot be read is None, never an error."""

from __future__ import annotations

import os
import re
from pathlib import Path


def natural(name: str) -> list[tuple[int, int | str]]:
    """Sort key by which ``mlx5_10`` comes after ``mlx5_9``."""
    return [(0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", name) if part]


class Tree:
    """Paths are given in parts below the root, as ``tree.text("class/net", name, "operstate")``."""

    def __init__(self, root: Path) -> None:
        # A copy of a whole host has sys below it.
        inside = root / "sys"
        self.root = os.path.realpath(inside if (inside / "class").is_dir() and not (root / "class").is_dir() else root)

    def path(self, *parts: str) -> str:
        return os.path.join(self.root, *parts)  # noqa: PTH118  pathlib costs ten times as much here, on thousands of files

    def text(self, *parts: str) -> str | None:
        """The file's text without surrounding blanks. Attributes answer EINVAL or EIO when they do not apply."""
        path = self.path(*parts)
        try:
            return _read(path)
        except NotADirectoryError:
            return self._flat_text(path)
        except OSError:
            return None

    def number(self, *parts: str) -> int | None:
        """A whole number, decimal or 0x."""
        text = self.text(*parts)
        try:
            return None if text is None else int(text, 0)
        except ValueError:
            return None

    def names(self, *parts: str) -> list[str]:
        """A folder's entries in natural order; empty when there is no such folder."""
        path = self.path(*parts)
        try:
            return sorted(os.listdir(path), key=natural)  # noqa: PTH208  see path
        except NotADirectoryError:
            place = self._flat(path)
            return sorted(os.listdir(place), key=natural) if os.path.isdir(place) else []  # noqa: PTH208, PTH112  see path
        except OSError:
            return []

    def has(self, *parts: str) -> bool:
        path = self.path(*parts)
        return os.path.exists(path) or os.path.exists(self._flat(path))  # noqa: PTH110  see path

    def real(self, *parts: str) -> str | None:
        """Where a link leads, as a path below the root; None when it leads out of the tree or nowhere."""
        path = os.path.realpath(self.path(*parts))
        if not os.path.isdir(path):  # noqa: PTH112  see path
            path = self._flat(path)
        return path[len(self.root) + 1 :] if path.startswith(self.root + os.sep) and os.path.isdir(path) else None  # noqa: PTH112

    # A copy that went through an archive or a checkout without links has files that hold the links' targets.

    def _flat(self, path: str) -> str:
        """The path with such files followed like links; the path itself when there are none."""
        if not path.startswith(self.root + os.sep):
            return path
        here = self.root
        for part in path[len(self.root) + 1 :].split("/"):
            here = os.path.normpath(os.path.join(here, part))  # noqa: PTH118  see path
            for _ in range(_HOPS):
                target = _target(here) if os.path.isfile(here) else None  # noqa: PTH113  see path
                if target is None or not target.startswith(self.root + os.sep):
                    break
                here = target
        return here

    def _flat_text(self, path: str) -> str | None:
        place = self._flat(path)
        try:
            return _read(place) if place != path else None
        except OSError:
            return None


_HOPS = 4
_LONGEST_TARGET = 1024


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123  see Tree.path
        return file.read().strip()


def _target(path: str) -> str | None:
    """What a file that stands for a link leads to."""
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123  see Tree.path
            text = file.read(_LONGEST_TARGET).strip()
    except (OSError, ValueError):
        return None
    if "/" not in text or "\n" in text or "\0" in text:
        return None
    target = os.path.normpath(os.path.join(os.path.dirname(path), text))  # noqa: PTH118, PTH120  see Tree.path
    return target if os.path.isdir(target) else None  # noqa: PTH112  see Tree.path
