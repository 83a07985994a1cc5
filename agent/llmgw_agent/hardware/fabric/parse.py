"""Reads what ibnetdiscover, iblinkinfo, ibqueryerrors and sminfo print. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field


@dataclass
class Node:
    """A node as ibnetdiscover tells it; ``port_guids`` of adapters only."""

    guid: str
    kind: str
    name: str
    ports: int
    image: str = ""
    lid: int | None = None
    port_guids: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, order=True)
class End:
    guid: str
    port: int


@dataclass(frozen=True)
class Link:
    """``a`` is the lesser end, so that a link seen from both sides is one. ``speed`` is width and speed: ``4xNDR``."""

    a: End
    b: End
    speed: str


@dataclass
class Topology:
    nodes: dict[str, Node] = field(default_factory=dict)
    links: dict[tuple[End, End], Link] = field(default_factory=dict)


def guid(digits: str) -> str:
    """16 hex digits: the tools leave out leading zeros in places."""
    return digits.lower().removeprefix("0x").rjust(16, "0")


_KINDS = {"Switch": "switch", "Ca": "host", "Rt": "router"}
_HEAD = re.compile(r'^(Switch|Ca|Rt)\s+(\d+)\s+"[SHR]-([0-9a-f]+)"\s*#\s*"(.*?)"(.*)$')
_SWITCH_LID = re.compile(r"\bport 0 lid (\d+)")
_EXTRA = r"(?:\[ext \S+\])?"
_PORT = re.compile(rf'^\[(\d+)\]{_EXTRA}(?:\(([0-9a-f]+)\))?\s+"[SHR]-([0-9a-f]+)"\[(\d+)\]{_EXTRA}(?:\([0-9a-f]+\))?\s*#(.*)$')
_OWN_LID = re.compile(r"^\s*lid (\d+)")
_SPEED = re.compile(r"(\d+x[A-Z]+\d*)\s*$")


def ibnetdiscover(text: str) -> Topology:
    """The full output: nodes in blocks, their live ports below. What is not understood is left out."""
    found = Topology()
    image, node = "", None
    for line in text.splitlines():
        if line.startswith("sysimgguid="):
            image = guid(line.partition("=")[2].strip())
        elif head := _HEAD.match(line):
            lid = _SWITCH_LID.search(head[5])
            node = Node(guid(head[3]), _KINDS[head[1]], head[4], int(head[2]), image, int(lid[1]) if lid else None)
            found.nodes[node.guid] = node
            image = ""
        elif node is not None and (port := _PORT.match(line)):
            _port(found, node, port)
        elif not line.strip():
            node = None
    return found


def _port(found: Topology, node: Node, port: re.Match[str]) -> None:
    own, other = End(node.guid, int(port[1])), End(guid(port[3]), int(port[4]))
    if port[2]:
        node.port_guids[own.port] = guid(port[2])
        lid = _OWN_LID.match(port[5])
        node.lid = int(lid[1]) if lid and node.lid is None else node.lid
    speed = _SPEED.search(port[5].rstrip())
    a, b = min(own, other), max(own, other)
    found.links[a, b] = Link(a, b, speed[1] if speed else "")


@dataclass(frozen=True)
class PortState:
    """One port as iblinkinfo tells it. ``could_be`` is the better speed or width that both ends can do, if any."""

    end: End
    name: str
    state: str
    physical: str
    width: str = ""
    lane: float | None = None
    could_be: str = ""


_INFO = re.compile(
    r'^0x([0-9a-f]+)\s+"\s*(.*?)"\s+\d+\s+(\d+)\[.*?\]\s*==\(\s*(?:(\d+)X\s+(\d+(?:\.\d+)?)\s*Gbps\s+)?(\S+)/\s*(\S+?)\s*\)==>(.*)$'
)
_COULD = re.compile(r"\(Could be ([^)]*?)\s*\)")


def iblinkinfo(text: str) -> dict[End, PortState]:
    """``iblinkinfo -l``: one line per port, the ones that are down too."""
    found = {}
    for line in text.splitlines():
        match = _INFO.match(line)
        if match is None:
            continue
        end = End(guid(match[1]), int(match[3]))
        could = _COULD.findall(match[8])
        found[end] = PortState(
            end,
            match[2],
            match[6],
            match[7],
            f"{match[4]}x" if match[4] else "",
            float(match[5]) if match[5] else None,
            ", ".join(could),
        )
    return found


#: Gb/s per lane as iblinkinfo prints it (signalling rate) → name.
_LANES = {
    2.5: "SDR",
    5.0: "DDR",
    10.0: "QDR",
    10.3125: "FDR10",
    14.0625: "FDR",
    25.78125: "EDR",
    53.125: "HDR",
    106.25: "NDR",
    212.5: "XDR",
}
#: Gb/s of data per lane.
_DATA = {"SDR": 2.5, "DDR": 5, "QDR": 10, "FDR10": 10, "FDR": 14, "EDR": 25, "HDR": 50, "NDR": 100, "XDR": 200}


def speed_name(width: str, lane: float | None) -> str:
    """``4x`` lanes at 106.25 Gb/s are ``4xNDR``; empty when the rate is none that is known."""
    if lane is None:
        return ""
    nearest = min(_LANES, key=lambda each: abs(each - lane))
    return f"{width}{_LANES[nearest]}" if abs(nearest - lane) <= 0.02 * lane else ""


def gigabits(speed: str) -> float | None:
    """``4xNDR`` is 400 Gb/s."""
    match = re.fullmatch(r"(\d+)x([A-Z]+\d*)", speed)
    return int(match[1]) * _DATA[match[2]] if match and match[2] in _DATA else None


_BAD_NODE = re.compile(r'^Errors for 0x([0-9a-f]+) "')
_BAD_PORT = re.compile(r"^\s+GUID 0x[0-9a-f]+ port (\d+):(.*)$")
_COUNTER = re.compile(r"\[(\w+) == (\d+)(?:\s*\([^)]*\))?\]")


def ibqueryerrors(text: str) -> dict[End, dict[str, int]]:
    """Counters beyond their thresholds by port; the summary line of each node (port ALL) is left out."""
    found: dict[End, dict[str, int]] = {}
    node = None
    for line in text.splitlines():
        if head := _BAD_NODE.match(line):
            node = guid(head[1])
        elif node is not None and (port := _BAD_PORT.match(line)):
            found[End(node, int(port[1]))] = {name: int(value) for name, value in _COUNTER.findall(port[2])}
    return found


_SMINFO = re.compile(r"sm lid (\d+) sm guid 0x([0-9a-f]+).*state \d+ (\w+)")


def sminfo(text: str) -> tuple[int, str, str] | None:
    """LID, port GUID and state of the subnet manager."""
    match = _SMINFO.search(text)
    return (int(match[1]), guid(match[2]), match[3]) if match else None


_UNANSWERED = re.compile(r"bad status 110|Connection timed out|bad status \d+")


def unanswered(err: str) -> int:
    """How many questions the fabric left open, by what the tool said on stderr. Its exit code is 0 all the same."""
    return sum(1 for line in err.splitlines() if _UNANSWERED.search(line))
