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
        try:
            with open(self.path(*parts), encoding="utf-8", errors="replace") as file:  # noqa: PTH123  see path
                return file.read().strip()
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
        try:
            return sorted(os.listdir(self.path(*parts)), key=natural)  # noqa: PTH208  see path
        except OSError:
            return []

    def has(self, *parts: str) -> bool:
        return os.path.exists(self.path(*parts))  # noqa: PTH110  see path

    def real(self, *parts: str) -> str | None:
        """Where a link leads, as a path below the root; None when it leads out of the tree or nowhere."""
        path = os.path.realpath(self.path(*parts))
        return path[len(self.root) + 1 :] if path.startswith(self.root + os.sep) and os.path.exists(path) else None  # noqa: PTH110  see path
