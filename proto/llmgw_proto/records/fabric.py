"""What is known of an InfiniBand subnet: one record per subnet, written by the one agent that maps it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from llmgw_proto.records.base import Record

#: Index of a node in ``nodes``, its port, the other node, its port, width and speed such as ``4xNDR``. A large fabric has
#: thousands of links; as lists they take a third of the room.
FabricLink = tuple[int, int, int, int, str]


class FabricNode(Record):
    """A switch, or one function of a host's adapter."""

    guid: str = Field(description="node GUID, 16 hex digits")
    kind: Literal["switch", "host", "router"]
    name: str = Field(default="", description="the node description; only as good as whoever set it")
    lid: int | None = None
    ports: int = 0
    image: str = Field(default="", description="system image GUID, the same for all functions of one card")
    port_guids: dict[int, str] = Field(default={}, description="hosts: port → port GUID, which agents know as theirs")


class FabricPortsRecord(Record):
    """``fabric-ports/<node>/ports``, under the agent's lease: written by nodes that have ports and the tools to map."""

    node: str
    ports: list[tuple[str, int, str]] = Field(default=[], description="adapter, port, port GUID of each that is ACTIVE")


class FabricMissing(Record):
    """A link that an earlier map had and this one has not, while the nodes at both ends are there."""

    a: str = Field(description="node GUID")
    a_port: int
    b: str
    b_port: int
    speed: str = ""
    since: float = Field(description="Unix time of the first map without it")


class FabricErrors(Record):
    """Error counters of one port beyond their thresholds."""

    guid: str
    port: int
    counters: dict[str, int]


class FabricChange(Record):
    """What differs from the map before."""

    at: float = Field(description="Unix time in seconds")
    kind: str = Field(description="link-down, link-up, slower, faster, flapping, errors, node-gone, node-new")
    where: str
    text: str


class FabricMapRecord(Record):
    """``fabric/<subnet>``: rewritten with every map."""

    subnet: str = Field(description="GUID of the lowest switch, or of the lowest adapter where there is no switch")
    mapper: str = Field(description="the node that made the map")
    mapped_at: float
    seconds: float = Field(default=0.0, description="how long mapping took")
    sm_guid: str = ""
    sm_lid: int | None = None
    nodes: list[FabricNode] = []
    links: list[FabricLink] = []
    missing: list[FabricMissing] = []
    errors: list[FabricErrors] = []
    partial: bool = Field(default=False, description="part of the fabric did not answer")
    problems: list[str] = []
    changes: list[FabricChange] = Field(default=[], description="the latest last, a few dozen at most")
