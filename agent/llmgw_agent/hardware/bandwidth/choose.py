"""How two nodes are tested against each other. Pure: from the topologies that both publish."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Json = Mapping[str, Any]


@dataclass(frozen=True)
class RdmaEnds:
    """A pair of ports of the same kind; ``gid_index`` of each for RoCE."""

    server: str
    client: str
    link_layer: str
    server_port: int = 1
    client_port: int = 1
    server_gid: int | None = None
    client_gid: int | None = None
    server_numa: int | None = None
    client_numa: int | None = None


def rails(topology: Json) -> list[Json]:
    """Ports that can be tested, fastest first, in natural order."""
    found = [port for port in topology.get("rdma_ports", []) if port.get("rail") and port.get("state") == "ACTIVE"]
    return sorted(found, key=lambda port: -(port.get("rate") or 0))


def method(server: Json, client: Json, server_hca: str | None = None, client_hca: str | None = None) -> RdmaEnds | None:
    """The ports to test over RDMA, or None when it has to be TCP.

    Without a wish the first pair of the same link layer is taken; on hosts wired by rails that is the same rail of both.
    """
    for one in rails(server):
        if server_hca is not None and one.get("hca") != server_hca:
            continue
        for other in rails(client):
            if client_hca is not None and other.get("hca") != client_hca:
                continue
            if one.get("link_layer") == other.get("link_layer"):
                return _ends(one, other)
    return None


def _ends(one: Json, other: Json) -> RdmaEnds:
    roce = one.get("link_layer") == "Ethernet"
    return RdmaEnds(
        server=str(one["hca"]),
        client=str(other["hca"]),
        link_layer=str(one["link_layer"]),
        server_port=int(one["port"]),
        client_port=int(other["port"]),
        server_gid=gid_index(one) if roce else None,
        client_gid=gid_index(other) if roce else None,
        server_numa=one.get("numa"),
        client_numa=other.get("numa"),
    )


def gid_index(port: Json) -> int | None:
    """The GID that routes: RoCE v2 with an IPv4 address in it, else any RoCE v2, else None (the program chooses)."""
    v2 = [gid for gid in port.get("gids", []) if gid.get("kind") == "RoCE v2"]
    mapped = [gid for gid in v2 if str(gid.get("gid", "")).startswith("0000:0000:0000:0000:0000:ffff:")]
    chosen = (mapped or v2)[:1]
    return int(chosen[0]["index"]) if chosen else None
