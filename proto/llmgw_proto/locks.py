"""Locks: requirements files in which every package has a hash. Checked alike by the admin API and by agents."""

from __future__ import annotations

MAKE_LOCK = "`uv pip compile --generate-hashes`"


def lock_problem(text: str) -> str | None:
    """What is wrong with a lock, None if nothing: it names no package, or one without a hash."""
    # A requirement goes on over lines that end in a backslash.
    lines = [line.strip() for line in text.replace("\\\r\n", " ").replace("\\\n", " ").splitlines()]
    entries = [line for line in lines if line and not line.startswith(("#", "-"))]
    if not entries:
        return f"names no package; make it again with {MAKE_LOCK}"
    for entry in entries:
        if "--hash=" not in entry:
            return f"has no hash for {entry.split(' ')[0]!r}; make it again with {MAKE_LOCK}"
    return None
