"""Why a replica cannot be placed: what it needs, the nearest node, what is missing there, and what to do."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from llmgw_coordinator.planner.place import Rooms
from llmgw_coordinator.planner.room import Need, Room


def why_not(rooms: Rooms, needs: Sequence[Need], avoid: Collection[str]) -> str:
    """One sentence about the most wanted profile; the others are only counted."""
    need = needs[0]
    others = f" (nor under its {len(needs) - 1} other profiles)" if len(needs) > 1 else ""
    return f"needs {demand(need)}{others}; {missing(rooms, need, avoid)}"


def demand(need: Need) -> str:
    parts = [f"engine {need.engine}"]
    if need.gpus:
        parts.append(gpus(need.gpus))
    if need.memory:
        parts.append(f"{size(need.memory)} of memory")
    if need.selector:
        parts.append("labels " + _labels(need))
    return " and ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else parts[0]


def missing(rooms: Rooms, need: Need, avoid: Collection[str]) -> str:
    """What keeps every node from taking it, and the remedy. ``avoid``: nodes that are out of the question."""
    known = list(rooms.all())
    if not known:
        return "no node has joined; start llmgw-agent on a host"
    live = [room for room in known if room.open]
    if not live:
        return f"none of the {len(known)} known nodes is alive and readable; start llmgw-agent there"
    able = [room for room in live if need.engine in room.engines]
    if not able:
        return f"none of the {len(live)} live nodes has engine {need.engine}; install it there or choose another engine"
    labelled = [room for room in able if room.offers(need)]
    if not labelled:
        return f"no live node with engine {need.engine} carries {_labels(need)}; label a node or change node_selector"
    untried = [room for room in labelled if room.name not in avoid]
    if not untried:
        names = ", ".join(sorted(room.name for room in labelled))
        return f"no node of the right kind is left to try ({names}); correct the model and apply it again, or add a node"
    return _short(min(untried, key=lambda room: _shortfall(room, need)), need)


def _shortfall(room: Room, need: Need) -> tuple[int, int, str]:
    return max(0, need.gpus - len(room.free_gpus)), max(0, need.memory - room.free_memory), room.name


def _short(room: Room, need: Need) -> str:
    missing_gpus, missing_memory, name = _shortfall(room, need)
    has = []
    if need.gpus:
        has.append(f"{len(room.free_gpus)} of {room.total_gpus} GPUs free")
    if need.memory:
        has.append(f"{size(max(0, room.free_memory))} of {size(room.total_memory)} of memory free")
    short = [text for count, text in ((missing_gpus, gpus(missing_gpus)), (missing_memory, size(missing_memory))) if count]
    larger = need.gpus > room.total_gpus or need.memory > room.total_memory
    remedy = "add a larger node or lower the demand" if larger else "scale down or remove another model, or add a node"
    return f"nearest is node {name} with {' and '.join(has)}: {' and '.join(short) or 'nothing'} missing; {remedy}"


def _labels(need: Need) -> str:
    return ", ".join(f"{key}={value}" for key, value in need.selector)


def gpus(count: int) -> str:
    return f"{count} GPU" if count == 1 else f"{count} GPUs"


def size(count: int) -> str:
    """Bytes for people: ``1.5 GiB``."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.4g} {unit}"
        amount /= 1024
    return f"{amount:.4g} TiB"
