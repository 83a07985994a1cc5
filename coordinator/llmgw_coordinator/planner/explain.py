"""Why a replica cannot be placed: what it needs, the nearest node, what is missing there, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from llmgw_coordinator.planner.gang import Seat, needs_rdma_path, seats
from llmgw_coordinator.planner.gpus import Kind, same_class
from llmgw_coordinator.planner.place import Rooms
from llmgw_coordinator.planner.room import Need, Room

_NAMED = 5


def why_not(rooms: Rooms, needs: Sequence[Need], avoid: Collection[str]) -> str:
    """One sentence about the most wanted profile; the others are only counted."""
    need = needs[0]
    others = f" (nor under its {len(needs) - 1} other profiles)" if len(needs) > 1 else ""
    return f"needs {demand(need)}{others}; {missing(rooms, need, avoid)}"


def demand(need: Need) -> str:
    parts = [f"engine {need.engine}"]
    if need.gpus:
        parts.append(gpus(need.gpus, need.gpu_class))
    if need.memory:
        parts.append(f"{size(need.memory)} of memory")
    if need.selector:
        parts.append("labels " + _labels(need))
    text = _and(parts)
    return f"{text} on each of {need.nodes} nodes" if need.nodes > 1 else text


def missing(rooms: Rooms, need: Need, avoid: Collection[str]) -> str:
    """What keeps every node from taking it, and the remedy. ``avoid``: nodes that are out of the question."""
    labelled = rooms.of_kind(replace(need, gpu_class=None))
    if not labelled:
        return _nobody(rooms, need)
    classed = rooms.of_kind(need)
    if not classed:
        there = sorted({kind.name for room in labelled for kind in room.kinds})
        return (
            f"no live node of the right kind has GPUs of class {need.gpu_class}, only {', '.join(there) or 'none at all'}; "
            "change gpu_class or add a node"
        )
    untried = [room for room in classed if room.name not in avoid]
    if not untried:
        names = ", ".join(sorted(room.name for room in classed))
        return f"no node of the right kind is left to try ({names}); correct the model and apply it again, or add a node"
    if need.nodes > 1:
        return _too_few(rooms, need, untried, avoid)
    return _short(min(untried, key=lambda room: _shortfall(room, need)), need)


def _nobody(rooms: Rooms, need: Need) -> str:
    """Why no node is of the right kind, GPUs aside."""
    known = list(rooms.all())
    if not known:
        return "no node has joined; start llmgw-agent on a host"
    live = [room for room in known if room.open]
    if not live:
        return f"none of the {len(known)} known nodes is alive and readable; start llmgw-agent there"
    if not any(need.engine in room.engines for room in live):
        return f"none of the {len(live)} live nodes has engine {need.engine}; install it there or choose another engine"
    return f"no live node with engine {need.engine} carries {_labels(need)}; label a node or change node_selector"


# --- on one node ---------------------------------------------------------------------------------------------------------


def _shortfall(room: Room, need: Need) -> tuple[int, int, str]:
    free = room.most_together(need) if need.gpus else 0
    return need.gpus - free, max(0, need.memory - room.free_memory), room.name


def _short(room: Room, need: Need) -> str:
    missing_gpus, missing_memory, name = _shortfall(room, need)
    has = []
    if need.gpus:
        has.append(f"{len(room.free_gpus)} of {room.total_gpus} GPUs free")
    if need.memory:
        has.append(f"{size(max(0, room.free_memory))} of {size(room.total_memory)} of memory free")
    short = [text for count, text in ((missing_gpus, gpus(missing_gpus)), (missing_memory, size(missing_memory))) if count]
    larger = need.gpus > _largest(room, need) or need.memory > room.total_memory
    remedy = "add a larger node or lower the demand" if larger else "scale down or remove another model, or add a node"
    apart = _apart(room, need, need.gpus - missing_gpus) if missing_gpus and len(room.free_gpus) >= need.gpus else ""
    return f"nearest is node {name} with {' and '.join(has)}{apart}: {' and '.join(short) or 'nothing'} missing; {remedy}"


def _apart(room: Room, need: Need, most: int) -> str:
    """Why GPUs that are free are not enough."""
    kinds = _wanted(room, need)
    if any(len(island) >= need.gpus for kind in kinds for island in kind.islands):
        return f", but at most {most} in one NVLink island, which a replica does not leave"
    if any(kind.single for kind in kinds):
        return f", but at most {most} together: parts of a GPU serve alone"
    return f", but at most {most} of one class, which all GPUs of a replica have to be"


def _largest(room: Room, need: Need) -> int:
    """How many GPUs a replica could have there at most, were all of them free."""
    return max((1 if kind.single else len(kind.uuids) for kind in _wanted(room, need)), default=0)


def _wanted(room: Room, need: Need) -> list[Kind]:
    return [kind for kind in room.kinds if need.gpu_class is None or same_class(kind.name, need.gpu_class)]


# --- on several nodes ----------------------------------------------------------------------------------------------------


def _too_few(rooms: Rooms, need: Need, untried: Sequence[Room], avoid: Collection[str]) -> str:
    free = seats(rooms, need, avoid)
    fitting = sorted({seat.room.name for seat in free})
    if len(fitting) >= need.nodes:
        return f"{len(fitting)} nodes have room ({_names(fitting)}), but {_unlike(rooms, need, free)}"
    if len(untried) < need.nodes:
        names = _names(sorted(room.name for room in untried))
        return f"of its kind there {_count(len(untried))} ({names}); add nodes or lower the profile's nodes"
    others = [room for room in untried if room.name not in fitting]
    nearest = _short(min(others, key=lambda room: _shortfall(room, need)), need)
    enough = f"room is on {_names(fitting)} only" if fitting else "no node has room"
    return f"{enough}; of the others {nearest}"


def _unlike(rooms: Rooms, need: Need, free: Sequence[Seat]) -> str:
    """In what the nodes differ: the first thing of which no value is shared by enough of them."""
    aspects: list[tuple[str, str, Callable[[Seat], str]]] = [
        ("have GPUs of one class", "set gpu_class, or make room on nodes of one class", lambda seat: seat.gpu_class or "none"),
        (
            f"run one version of {need.engine}",
            "set the profile's version, or give the agents one version",
            lambda seat: seat.version or "unknown",
        ),
    ]
    for wish, remedy, aspect in aspects:
        if _most_alike([aspect(seat) for seat in free]) < need.nodes:
            return f"no {need.nodes} of them {wish} ({_listed(free, aspect)}); {remedy}"
    if needs_rdma_path(need):
        reach = [seat.closeness[2] for seat in free]
        if _most_alike(reach) < need.nodes:

            def network(seat: Seat) -> str:
                found = rooms.attachment(seat.room.name)
                subnets = f" {'+'.join(sorted(found.subnets))}" if found.layer and found.reach[1] else ""
                return f"{found.layer or 'no RDMA'}{subnets}"

            return (
                f"no {need.nodes} of them are joined by RDMA with GPUs of one class and one version "
                f"({_listed(free, network)}); look after the fabric, see llmgwctl fabric list"
            )
    return f"no {need.nodes} of them have both GPUs of one class and one version of {need.engine}; set gpu_class or version"


def _most_alike(values: Sequence[object]) -> int:
    return max((values.count(value) for value in set(values)), default=0)


def _listed(free: Sequence[Seat], aspect: Callable[[Seat], str]) -> str:
    texts = sorted({f"{seat.room.name}: {aspect(seat)}" for seat in free})
    return _names(texts)


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _count(count: int) -> str:
    return "is only 1 node" if count == 1 else f"are only {count} nodes"


def _and(parts: Sequence[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else parts[0]


def _labels(need: Need) -> str:
    return ", ".join(f"{key}={value}" for key, value in need.selector)


def gpus(count: int, gpu_class: str | None = None) -> str:
    of_class = f" of class {gpu_class}" if gpu_class is not None else ""
    return (f"{count} GPU" if count == 1 else f"{count} GPUs") + of_class


def size(count: int) -> str:
    """Bytes for people: ``1.5 GiB``."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.4g} {unit}"
        amount /= 1024
    return f"{amount:.4g} TiB"
