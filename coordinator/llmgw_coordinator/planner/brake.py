"""The brake on mass loss: when many nodes vanish at once it is rarely the nodes that failed."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

from llmgw_coordinator.planner.data import Node, Settings


def countable(nodes: Iterable[Node], used: Collection[str]) -> list[Node]:
    """Nodes that say something about the present: not those that were gone already when this coordinator started and have no
    replicas to lose. They may have been scrapped long ago. ``used``: nodes with replicas.
    """
    return [node for node in nodes if node.alive or node.witnessed or node.name in used]


def vanished_together(known: Collection[Node], settings: Settings) -> list[str]:
    """Nodes that vanished within one grace window and are still away, if they are too many to be believed; else nothing."""
    limit = max(settings.brake_min, math.floor(settings.brake_share * len(known)) + 1)
    gone = sorted((node.gone_for, node.name) for node in known if node.gone_for is not None)
    best: list[str] = []
    start = 0
    for end, (age, _) in enumerate(gone):
        while age - gone[start][0] > settings.grace:
            start += 1
        if end - start + 1 >= max(limit, len(best) + 1):
            best = [name for _, name in gone[start : end + 1]]
    return sorted(best)


def explain(vanished: list[str], total: int, settings: Settings) -> str:
    names = ", ".join(vanished[:5]) + (f" and {len(vanished) - 5} more" if len(vanished) > 5 else "")
    return (
        f"{len(vanished)} of {total} nodes vanished within {settings.grace:g} s ({names}), so no replica is moved; "
        "look for a fault of the network or of etcd and start the agents again. If the nodes are lost for good, set "
        "placement.brake_share: 1 in the coordinators' configuration"
    )
