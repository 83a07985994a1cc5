"""Which RDMA ports serve which GPU: distances, nearest adapters, rails. Pure.

A rail is a port that NCCL shall use. Names mean nothing (mlx5_3 may be the storage card): a port is a rail when it is as near
to some GPU as ports get on this host. Where distances tell nothing (every port is equally far), all alike ports are rails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from llmgw_agent.hardware.pci import DISTANCES
from llmgw_agent.hardware.rdma import Hca, Port

#: PIX and PXB are behind the same root port; then the same host bridge, the same NUMA node, anything.
_TIER = {"PIX": 0, "PXB": 0, "PHB": 1, "NODE": 2, "SYS": 3, "UNKNOWN": 3}

Gpu = str


@dataclass(frozen=True)
class Rails:
    """``distance`` is by (GPU, HCA); ``nearest`` GPU → its nearest HCAs; ``rails`` the ports for NCCL, in natural order."""

    distance: dict[tuple[Gpu, str], str] = field(default_factory=dict)
    nearest: dict[Gpu, list[str]] = field(default_factory=dict)
    wanted: list[str] = field(default_factory=list)
    rails: list[Port] = field(default_factory=list)


def usable(hcas: Iterable[Hca]) -> list[Hca]:
    """Adapters that NCCL could use: hardware, and not meant for a guest."""
    return [hca for hca in hcas if not hca.software and not hca.virtual and hca.ports]


def derive(gpus: Iterable[Gpu], hcas: Iterable[Hca], measure: Callable[[Gpu, Hca], str]) -> Rails:
    """``measure`` gives the distance word of a GPU and an HCA."""
    candidates = usable(hcas)
    distance: dict[tuple[Gpu, str], str] = {}
    nearest: dict[Gpu, list[str]] = {}
    best: dict[Gpu, int] = {}
    for gpu in gpus:
        if not candidates:
            nearest[gpu] = []
            continue
        words = {hca.name: measure(gpu, hca) for hca in candidates}
        distance |= {(gpu, name): word for name, word in words.items()}
        rank = min(DISTANCES.index(word) for word in words.values())
        nearest[gpu] = [name for name, word in words.items() if DISTANCES.index(word) == rank]
        best[gpu] = _TIER[DISTANCES[rank]]
    wanted = _wanted(candidates, nearest, best)
    return Rails(distance, nearest, wanted, choose([hca for hca in candidates if hca.name in wanted]))


def _wanted(candidates: list[Hca], nearest: dict[Gpu, list[str]], best: dict[Gpu, int]) -> list[str]:
    if not best or min(best.values()) == _TIER["SYS"]:
        return [hca.name for hca in candidates]
    tier = min(best.values())
    # A GPU whose own card is missing has only far ones left: those are not rails for that.
    near = {name for gpu, names in nearest.items() if best[gpu] == tier for name in names}
    return [hca.name for hca in candidates if hca.name in near]


def choose(hcas: list[Hca]) -> list[Port]:
    """The active ports of one kind: one link layer (NCCL cannot mix them), none slower than half of the fastest."""
    active = [port for hca in hcas for port in hca.ports if port.active]
    layers: dict[str, float] = {}
    for port in active:
        layers[port.link_layer] = layers.get(port.link_layer, 0) + (port.rate or 0)
    if not layers:
        return []
    # At equal rates InfiniBand: whoever installs both means it for this.
    layer = max(layers, key=lambda name: (layers[name], name == "InfiniBand"))
    fastest = max(port.rate or 0 for port in active if port.link_layer == layer)
    return [port for port in active if port.link_layer == layer and (port.rate or 0) * 2 >= fastest]
