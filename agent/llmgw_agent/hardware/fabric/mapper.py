"""Makes a map of the subnet that a port is on."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter

from llmgw_agent.hardware.fabric import parse
from llmgw_agent.hardware.fabric.errors import ToolFailedError, ToolHungError
from llmgw_agent.hardware.fabric.tools import Tools, failed
from llmgw_base.clock import Clock, SystemClock
from llmgw_proto.records.fabric import FabricErrors, FabricLink, FabricMapRecord, FabricNode

PROGRAMS = ("ibnetdiscover", "iblinkinfo", "ibqueryerrors", "sminfo")


def missing_tools() -> list[str]:
    """Programs that are not installed here; a node that lacks any maps nothing."""
    return [program for program in PROGRAMS if shutil.which(program) is None]


async def make_map(node: str, tools: Tools, deadline: float = 60.0, clock: Clock | None = None) -> FabricMapRecord:
    """Maps the subnet, within ``deadline`` seconds; the record has no changes yet (see ``changes.carry_over``).

    What the fabric holds back (an unresponsive switch, no subnet manager, counters that cannot be read) is left out of the map
    and named in its problems.

    Raises:
        FabricMapError: there is no map at all.
    """
    clock = clock or SystemClock()
    started = clock.monotonic()

    def left() -> float:
        return max(0.1, deadline - (clock.monotonic() - started))

    output = await tools.run("ibnetdiscover", [], left())
    topology = parse.ibnetdiscover(output.out)
    if output.code or not topology.nodes:
        raise failed("ibnetdiscover", output)
    problems: list[str] = []
    unanswered = parse.unanswered(output.err)
    if unanswered:
        problems.append(f"part of the fabric did not answer ({unanswered} paths): a switch or its management is stuck")
    ports, errors, manager = await asyncio.gather(
        _ports(tools, left(), problems), _errors(tools, left(), problems), _sm(tools, left())
    )
    if manager is None:
        problems.append(
            "no subnet manager answers: existing links may go on, nothing new can join; start opensm or the switch's own"
        )
    problems += judge_links(topology, ports)
    order = sorted(topology.nodes.values(), key=lambda each: (each.kind, each.guid))
    index = {each.guid: at for at, each in enumerate(order)}
    return FabricMapRecord(
        subnet=subnet_id(topology),
        mapper=node,
        mapped_at=clock.wall(),
        seconds=round(clock.monotonic() - started, 3),
        sm_lid=manager[0] if manager else None,
        sm_guid=manager[1] if manager else "",
        nodes=[_node(each) for each in order],
        links=_links(topology, ports, index),
        errors=[FabricErrors(guid=end.guid, port=end.port, counters=counters) for end, counters in sorted(errors.items())],
        partial=bool(unanswered),
        problems=problems,
    )


def subnet_id(topology: parse.Topology) -> str:
    """The lowest switch's GUID: the subnet prefix is the same on every fabric that nobody set up otherwise."""
    switches = [guid for guid, node in topology.nodes.items() if node.kind == "switch"]
    return min(switches or topology.nodes)


def _node(node: parse.Node) -> FabricNode:
    kind = "switch" if node.kind == "switch" else "router" if node.kind == "router" else "host"
    image = node.image if node.image != node.guid else ""
    return FabricNode(
        guid=node.guid, kind=kind, name=node.name, lid=node.lid, ports=node.ports, image=image, port_guids=node.port_guids
    )


def _links(topology: parse.Topology, ports: dict[parse.End, parse.PortState], index: dict[str, int]) -> list[FabricLink]:
    found: list[FabricLink] = []
    for link in topology.links.values():
        if link.a.guid not in index or link.b.guid not in index:
            continue
        info = ports.get(link.a) or ports.get(link.b)
        speed = link.speed or (parse.speed_name(info.width, info.lane) if info else "")
        found.append((index[link.a.guid], link.a.port, index[link.b.guid], link.b.port, speed))
    return sorted(found)


async def _ports(tools: Tools, deadline: float, problems: list[str]) -> dict[parse.End, parse.PortState]:
    try:
        output = await tools.run("iblinkinfo", ["-l"], deadline)
    except ToolHungError as error:
        problems.append(f"states of ports are missing: {error}")
        return {}
    found = parse.iblinkinfo(output.out)
    if not found:
        problems.append(f"states of ports are missing: {failed('iblinkinfo', output)}")
    return found


async def _errors(tools: Tools, deadline: float, problems: list[str]) -> dict[parse.End, dict[str, int]]:
    try:
        output = await tools.run("ibqueryerrors", [], deadline)
    except ToolHungError as error:
        problems.append(f"error counters are missing: {error}")
        return {}
    # Exit code 1 is how it says that it found errors.
    if "## Summary" not in output.out:
        problems.append(f"error counters are missing: {failed('ibqueryerrors', output)}")
    return parse.ibqueryerrors(output.out)


async def _sm(tools: Tools, deadline: float) -> tuple[int, str, str] | None:
    try:
        output = await tools.run("sminfo", [], deadline)
    except (ToolHungError, ToolFailedError):
        return None
    return parse.sminfo(output.out) if output.code == 0 else None


def judge_links(topology: parse.Topology, ports: dict[parse.End, parse.PortState]) -> list[str]:
    """Links slower than most of their kind, and links that are up but not in use."""
    problems: list[str] = []
    kinds: dict[str, Counter[float]] = {}
    rates: list[tuple[parse.Link, str, float]] = []
    for link in topology.links.values():
        rate = parse.gigabits(link.speed)
        ends = topology.nodes.get(link.a.guid), topology.nodes.get(link.b.guid)
        if rate is None or ends[0] is None or ends[1] is None:
            continue
        kind = "-".join(sorted(end.kind for end in ends if end is not None))
        kinds.setdefault(kind, Counter())[rate] += 1
        rates.append((link, kind, rate))
    for link, kind, rate in rates:
        usual = max(kinds[kind], key=lambda each: (kinds[kind][each], each))
        if rate < usual:
            problems.append(f"{describe(topology, link)} runs at {link.speed}, others of its kind at {usual:g} Gb/s")
    for end, port in sorted(ports.items()):
        if port.physical == "LinkUp" and port.state not in ("Active", "Armed"):
            problems.append(
                f"{port.name or end.guid} port {end.port} is up but {port.state.lower()}: no subnet manager has set it up"
            )
    return problems


def describe(topology: parse.Topology, link: parse.Link) -> str:
    """A link by the names of its ends."""
    names = [topology.nodes[end.guid].name if end.guid in topology.nodes else end.guid for end in (link.a, link.b)]
    return f"the link {names[0]} port {link.a.port} - {names[1]} port {link.b.port}"
