"""Who is asked for a content, and who is waited for. Decisions only.

The nodes that fetch the same content stand in a line, in the order in which their keys were created. The first asks the source;
the others wait for whoever stands before them, take each file as soon as one of them has it, and give it on themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

#: How many are asked for one file before the line is looked at again.
MOST_GIVERS: Final = 4
#: How many of those that fetch are asked how far they are.
MOST_ASKED: Final = 4
#: A line longer than this is looked at less often, since each look reads all of it.
_LONG: Final = 50


@dataclass(frozen=True)
class Member:
    """A node that has the content (``here``) or fetches it. ``since`` orders the line: the revision that created its key."""

    node: str
    url: str
    here: bool
    since: int


def ahead(line: Iterable[Member], me: str, avoided: Collection[str]) -> list[Member]:
    """Those that fetch and stand before this node, the first first. A node that is not in the line stands behind all."""
    mine = next((each.since for each in line if each.node == me), None)
    before = [each for each in line if not each.here and each.node != me and each.node not in avoided]
    return sorted((each for each in before if mine is None or each.since < mine), key=lambda each: each.since)


def givers(
    line: Iterable[Member],
    me: str,
    digest: str,
    having: Mapping[str, Collection[str]],
    avoided: Collection[str],
    lot: Mapping[str, float],
) -> list[Member]:
    """Whom to ask for a file: those that have all before those that fetch and have this one; in the order of their lots."""
    able = [
        each
        for each in line
        if each.node != me and each.node not in avoided and (each.here or digest in having.get(each.node, ()))
    ]
    return sorted(able, key=lambda each: (not each.here, lot.get(each.node, 0.0)))[:MOST_GIVERS]


def to_ask(line: Sequence[Member], me: str, avoided: Collection[str], lot: Mapping[str, float]) -> list[Member]:
    """Of those that fetch, whom to ask how far they are: the first of the line, and some others by lot."""
    first = ahead(line, me, avoided)[:1]
    others = [each for each in line if not each.here and each.node != me and each.node not in avoided and each not in first]
    return [*first, *sorted(others, key=lambda each: lot.get(each.node, 0.0))[: MOST_ASKED - len(first)]]


def pause_between_looks(length: int, shortest: float) -> float:
    """Seconds between two looks at a line of so many."""
    return shortest * max(1.0, length / _LONG)
