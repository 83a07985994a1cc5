"""What the parts of a key name; None for keys of another shape, which belong to another table or a newer version."""

from __future__ import annotations

from collections.abc import Callable

from llmgw_coordinator.state.view import Place
from llmgw_proto import keyspace


def one(prefix: str) -> Callable[[str], str | None]:
    """``<prefix><name>``."""

    def name(key: str) -> str | None:
        parts = keyspace.split(key, prefix) if key.startswith(prefix) else ()
        return parts[0] if len(parts) == 1 and parts[0] else None

    return name


def two(prefix: str) -> Callable[[str], Place | None]:
    """``<prefix><node>/<name>``."""

    def name(key: str) -> Place | None:
        parts = keyspace.split(key, prefix) if key.startswith(prefix) else ()
        return (parts[0], parts[1]) if len(parts) == 2 and all(parts) else None

    return name


def of_node(what: str) -> Callable[[str], str | None]:
    """``nodes/<node>/<what>``."""
    place = two(keyspace.NODES)

    def name(key: str) -> str | None:
        found = place(key)
        return found[0] if found is not None and found[1] == what else None

    return name


def exactly(wanted: str) -> Callable[[str], str | None]:
    return lambda key: wanted if key == wanted else None
