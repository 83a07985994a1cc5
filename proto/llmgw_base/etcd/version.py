"""Which etcd versions are fit for a cluster. Pure."""

from __future__ import annotations

import re

_DEFRAGMENTATION = "a member that crashes while it is defragmented can come back with data that differs (etcd-io/etcd#14685)"
_KILLED_UNDER_LOAD = "a member that is killed under load can come back with data that differs (etcd-io/etcd#13766)"

#: First and first good version of each range, and what is wrong with it.
_FAULTY: tuple[tuple[tuple[int, int, int], tuple[int, int, int], str], ...] = (
    ((0, 0, 0), (3, 4, 0), "llmgw needs the watch progress requests of etcd 3.4"),
    ((3, 4, 0), (3, 4, 22), _DEFRAGMENTATION),
    ((3, 5, 0), (3, 5, 3), _KILLED_UNDER_LOAD),
    ((3, 5, 3), (3, 5, 6), _DEFRAGMENTATION),
)


def parse(text: str) -> tuple[int, int, int] | None:
    """``3.5.16`` or ``3.6.0-rc.1`` as numbers; None if it is neither."""
    match = re.match(r"(\d+)\.(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def fault(text: str) -> str | None:
    """Why a server of this version cannot be trusted; None if it can, or if the version cannot be read."""
    version = parse(text)
    if version is None:
        return None
    return next((reason for first, good, reason in _FAULTY if first <= version < good), None)
