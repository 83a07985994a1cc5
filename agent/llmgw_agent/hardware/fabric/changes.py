"""What changed between two maps of a subnet. Pure."""

from __future__ import annotations

from collections.abc import Callable

from llmgw_agent.hardware.fabric.parse import gigabits
from llmgw_proto.records.fabric import FabricChange, FabricMapRecord, FabricMissing, FabricNode

#: How many changes a record keeps.
KEEP = 50
_DOWNED = "LinkDownedCounter"

End = tuple[str, int]
Key = tuple[End, End]
Add = Callable[[str, str, str], None]


def links_of(record: FabricMapRecord) -> dict[Key, str]:
    """Links by their ends (node GUID, port), lesser end first, with their speed."""
    found: dict[Key, str] = {}
    for a, a_port, b, b_port, speed in record.links:
        one, other = (record.nodes[a].guid, a_port), (record.nodes[b].guid, b_port)
        found[min(one, other), max(one, other)] = speed
    return found


def carry_over(before: FabricMapRecord | None, now: FabricMapRecord) -> FabricMapRecord:
    """The new map with the changes since ``before``, the links that are missing, and the changes that ``before`` knew.

    A map that is partial says nothing about what it does not show: nothing is reported gone then, nor new after it.
    """
    if before is None:
        return now
    found = changes(before, now)
    return now.model_copy(update={"changes": [*before.changes, *found][-KEEP:], "missing": missing(before, now)})


def changes(before: FabricMapRecord, now: FabricMapRecord) -> list[FabricChange]:
    """In the order: nodes, links, speeds, errors."""
    had, have = {node.guid: node for node in before.nodes}, {node.guid: node for node in now.nodes}
    found: list[FabricChange] = []

    def add(kind: str, where: str, text: str) -> None:
        found.append(FabricChange(at=now.mapped_at, kind=kind, where=where, text=text))

    for guid in sorted(have.keys() - had.keys()) if not before.partial else []:
        add("node-new", guid, f"{_name(have[guid])} has joined the fabric")
    if not now.partial:
        for guid in sorted(had.keys() - have.keys()):
            add("node-gone", guid, f"{_name(had[guid])} is gone from the fabric")
    _links(before, now, add, have)
    _errors(before, now, add, have)
    return found


def _links(before: FabricMapRecord, now: FabricMapRecord, add: Add, have: dict[str, FabricNode]) -> None:
    old, new = links_of(before), links_of(now)
    for key in sorted(new.keys() - old.keys()):
        # A new node's links are no news of their own, nor is what a partial map left out.
        if not before.partial and all(guid in {node.guid for node in before.nodes} for guid, _ in key):
            add("link-up", _where(key), f"{_link(key, have)} is up ({new[key]})")
    if not now.partial:
        for key in sorted(old.keys() - new.keys()):
            if all(guid in have for guid, _ in key):
                add("link-down", _where(key), f"{_link(key, have)} is down: check cable and transceivers")
    for key in sorted(old.keys() & new.keys()):
        was, rate = gigabits(old[key]), gigabits(new[key])
        if was is not None and rate is not None and was != rate:
            kind = "slower" if rate < was else "faster"
            add(kind, _where(key), f"{_link(key, have)} runs at {new[key]} instead of {old[key]}")


def _errors(before: FabricMapRecord, now: FabricMapRecord, add: Add, have: dict[str, FabricNode]) -> None:
    old = {(each.guid, each.port): each.counters for each in before.errors}
    for each in now.errors:
        earlier = old.get((each.guid, each.port), {})
        grown = {name: value - earlier.get(name, 0) for name, value in each.counters.items() if value > earlier.get(name, 0)}
        where = f"{each.guid}[{each.port}]"
        named = f"{_name(have[each.guid]) if each.guid in have else each.guid} port {each.port}"
        downs = grown.pop(_DOWNED, 0)
        if downs:
            add("flapping", where, f"{named}: the link went down {downs} times since the last map: replace the cable")
        if grown:
            counters = ", ".join(f"{name} +{value}" for name, value in sorted(grown.items()))
            add("errors", where, f"{named}: {counters}")


def missing(before: FabricMapRecord, now: FabricMapRecord) -> list[FabricMissing]:
    """Links that an earlier map had and this one has not, between nodes that are both still there."""
    have = {node.guid for node in now.nodes}
    present = links_of(now)
    found: dict[Key, FabricMissing] = {}
    for each in before.missing:
        found[(each.a, each.a_port), (each.b, each.b_port)] = each
    for key, speed in links_of(before).items() if not now.partial else ():
        (a, a_port), (b, b_port) = key
        found.setdefault(key, FabricMissing(a=a, a_port=a_port, b=b, b_port=b_port, speed=speed, since=now.mapped_at))
    taken = {end for key in present for end in key}
    # A port that has another link now was cabled anew, which is nothing to miss.
    return [
        each
        for key, each in sorted(found.items())
        if key not in present and not taken & set(key) and (now.partial or {each.a, each.b} <= have)
    ]


def _where(key: Key) -> str:
    return " - ".join(f"{guid}[{port}]" for guid, port in key)


def _name(node: FabricNode) -> str:
    return node.name or node.guid


def _link(key: Key, have: dict[str, FabricNode]) -> str:
    ends = [f"{_name(have[guid]) if guid in have else guid} port {port}" for guid, port in key]
    return f"the link {ends[0]} - {ends[1]}"
