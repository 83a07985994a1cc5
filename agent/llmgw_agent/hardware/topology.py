"""The hardware as JSON: for etcd, for ``detect -o json``, and for everything that draws it."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from typing import TYPE_CHECKING, Any

import msgspec

from llmgw_agent.hardware.islands import REMOTE_SWITCH
from llmgw_agent.hardware.nvlink_fabric import STATES
from llmgw_agent.hardware.nvlink_lanes import active
from llmgw_agent.hardware.pci import DISTANCES, distance
from llmgw_agent.hardware.processes import name_of
from llmgw_agent.hardware.throttle import throttle_words

if TYPE_CHECKING:
    from llmgw_agent.hardware.hardware import GpuView, Hardware
    from llmgw_agent.hardware.numa import NumaNode
    from llmgw_agent.hardware.raw import Link

Json = dict[str, Any]

#: NVML's enumeration of NVLink versions.
_NVLINK_VERSIONS = {1: "1.0", 2: "2.0", 3: "2.2", 4: "3.0", 5: "3.1", 6: "4.0", 7: "5.0", 8: "6.0"}


def as_json(hardware: Hardware, live: bool = True) -> Json:
    """All of it. Sizes in bytes, power in watts, clocks in MHz, temperatures in °C, rates in Gb/s.

    Without ``live`` what changes from second to second is left out, so that the record in etcd changes only when the hardware
    does.
    """
    system = hardware.nvml.system
    return {
        "gpus": [_gpu(hardware, gpu) | (_gpu_live(hardware, gpu) if live else {}) for gpu in hardware.gpus],
        "islands": _islands(hardware),
        "tp_groups": [_keys(hardware, group) for island in hardware.nvlink.islands for group in island.groups],
        "pci_groups": [_keys(hardware, group) for group in hardware.pci_groups()],
        "gpu_links": _gpu_links(hardware),
        "rdma_ports": _ports(hardware, live),
        "hcas": _hcas(hardware),
        "hca_links": _hca_links(hardware),
        "gpu_nics": hardware.rails.nearest,
        "gpu_nic_distance": _nic_distances(hardware),
        "rails": [port.name for port in hardware.rails.rails],
        "nccl_env": hardware.nccl_env(),
        "interfaces": {"management": hardware.interfaces.management, "fabric": hardware.interfaces.fabric},
        "netdevs": [msgspec.to_builtins(device) for device in hardware.host.netdevs] if hardware.host else [],
        "numa": [_numa(node, live) for node in hardware.host.numa] if hardware.host else [],
        "host": _host(hardware, live),
        "driver": None
        if system is None or system.error
        else {"version": system.driver, "nvml": system.nvml, "cuda": _cuda(system.cuda)},
        "problems": [problem.as_json() for problem in hardware.problems],
        "notes": list(hardware.notes),
    }


def _keys(hardware: Hardware, group: tuple[int, ...] | list[int]) -> list[str]:
    return [hardware.gpu_at[index].key for index in group]


def _cuda(version: int | None) -> str | None:
    return None if version is None else f"{version // 1000}.{version % 1000 // 10}"


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else milliwatts / 1000


def _gpu(hardware: Hardware, gpu: GpuView) -> Json:
    raw = gpu.raw
    card = gpu.pci
    return {
        "uuid": raw.uuid,
        "index": raw.index,
        "name": gpu.name,
        "class": gpu.gpu_class,
        "pci": gpu.address,
        "numa": gpu.numa,
        "cpus": gpu.cpus,
        "quarantine": gpu.quarantine,
        "mig": _mig(gpu),
        "memory_bytes": raw.memory_total,
        "compute_capability": None if raw.cc is None else f"{raw.cc[0]}.{raw.cc[1]}",
        "serial": raw.serial,
        "vbios": raw.vbios,
        "minor": raw.minor,
        "virtualization": {1: "passthrough", 2: "vgpu", 3: "host-vgpu", 4: "host-vsga"}.get(raw.virtualization or 0),
        "power": {
            "limit": _watts(raw.power_limit),
            "default": _watts(raw.power_default),
            "min": _watts(raw.power_range[0]) if raw.power_range else None,
            "max": _watts(raw.power_range[1]) if raw.power_range else None,
        },
        "clocks_max": {"sm": raw.clock_max_sm, "memory": raw.clock_max_mem},
        "ecc": None if raw.ecc is None else bool(raw.ecc[0]),
        "remapped_rows": None
        if raw.remapped is None
        else dict(zip(("corrected", "uncorrected", "pending", "failed"), raw.remapped, strict=True)),
        "retired_pages": raw.retired_pages,
        "persistence": None if raw.persistence is None else bool(raw.persistence),
        "pcie": {
            "width": (card.width if card else None) or raw.pcie_width,
            "max_width": (card.max_width if card else None) or raw.pcie_max_width,
            "max_generation": raw.pcie_max_gen,
            "max_speed": card.max_speed if card else None,
        },
        "nvlink": _nvlink(hardware, gpu),
        "fabric": _fabric(gpu),
        "platform": None if raw.platform is None else msgspec.to_builtins(raw.platform),
    }


def _gpu_live(hardware: Hardware, gpu: GpuView) -> Json:
    raw = gpu.raw
    return {
        "memory_used_bytes": raw.memory_used,
        "temperature": raw.temperature,
        "utilization": raw.utilization[0] if raw.utilization else None,
        "power_usage": _watts(raw.power),
        "clocks": {"sm": raw.clock_sm, "memory": raw.clock_mem},
        "throttle": throttle_words(raw.throttle),
        "ecc_errors": {"corrected": raw.ecc_corrected, "uncorrected": raw.ecc_uncorrected},
        "pcie_now": {"generation": raw.pcie_gen, "speed": gpu.pci.speed if gpu.pci else None},
        "processes": [{"pid": each.pid, "name": name_of(each.pid), "memory_bytes": each.memory} for each in raw.processes],
    }


def _host(hardware: Hardware, live: bool) -> Json | None:
    if hardware.host is None:
        return None
    facts: Json = msgspec.to_builtins(hardware.host.host)
    if not live:
        facts.pop("disks")
        facts["memory"].pop("available_bytes")
        facts["clock"].pop("error_seconds")
    return facts


def _numa(node: NumaNode, live: bool) -> Json:
    facts: Json = msgspec.to_builtins(node)
    if not live:
        facts["huge_pages"] = {size: total for size, (total, _) in node.huge_pages.items()}
        # The kernel moves the boundary a little when memory is taken offline and back.
        facts.pop("memory_bytes")
    return facts


def _mig(gpu: GpuView) -> Json | None:
    """None for a GPU that is whole, so that the value reads as a yes or no too."""
    mig = gpu.raw.mig
    if mig is None or not mig.current:
        return None
    return {
        "enabled": True,
        "pending": bool(mig.pending),
        "instances": [
            {
                "uuid": part.uuid,
                "name": part.name,
                "gpu_instance": part.gpu_instance,
                "compute_instance": part.compute_instance,
                "memory_bytes": part.memory_total,
            }
            for part in mig.instances
        ],
    }


def _nvlink(hardware: Hardware, gpu: GpuView) -> Json | None:
    """``peers`` counts live links by the other end's UUID, or by ``switch``."""
    links = hardware.nvml.links.get(gpu.raw.index)
    if links is None or not links.links:
        return None
    peers = Counter(_peer(hardware, gpu, link) for link in links.links if link.up)
    return {
        "active": active(links),
        "total": len(links.links),
        "switch": "switch" in peers,
        "version": next((_NVLINK_VERSIONS.get(link.version or 0) for link in links.links if link.version), None),
        "speed_mbps": max((link.speed for link in links.links if link.speed), default=None),
        "peers": dict(peers),
        "inactive": [link.link for link in links.links if not link.up],
    }


def _peer(hardware: Hardware, gpu: GpuView, link: Link) -> str:
    if link.remote is None or link.remote_type == REMOTE_SWITCH:
        return "switch"
    known = {other.address: other.key for other in hardware.gpus if other.address}
    switched = hardware.nvlink.switch_links.get(gpu.raw.index, 0)
    return known.get(link.remote) or ("switch" if switched else link.remote)


def _fabric(gpu: GpuView) -> Json | None:
    fabric = gpu.raw.fabric
    if fabric is None:
        return None
    return {
        "state": STATES.get(fabric.state, str(fabric.state)),
        "status": fabric.status,
        "cluster": fabric.cluster,
        "clique": fabric.clique,
        "health_mask": fabric.health_mask,
        "health_summary": {0: None, 1: "healthy", 2: "unhealthy", 3: "limited"}.get(fabric.health_summary or 0),
    }


def _islands(hardware: Hardware) -> list[Json]:
    return [
        {
            "uuids": _keys(hardware, island.gpus),
            "all_to_all": island.all_to_all,
            "domain": island.domain,
            "switched": island.switched,
            "tp_groups": [_keys(hardware, group) for group in island.groups],
            # A domain spans hosts only through IMEX, whose channels are device files.
            "imex": bool(hardware.host and hardware.host.imex_channels) if island.domain else None,
        }
        for island in hardware.nvlink.islands
    ]


def _gpu_links(hardware: Hardware) -> list[list[str]]:
    """The GPU matrix as rows; ``X`` on the diagonal."""
    indices = [gpu.raw.index for gpu in hardware.gpus]
    words = {pair: hardware.between(*pair) for pair in combinations(indices, 2)}
    return [["X" if a == b else words[min(a, b), max(a, b)] for b in indices] for a in indices]


def _ports(hardware: Hardware, live: bool) -> list[Json]:
    if hardware.host is None:
        return []
    rails = {port.name for port in hardware.rails.rails}
    return [
        {
            "hca": port.hca,
            "port": port.port,
            "link_layer": port.link_layer,
            "state": port.state,
            "phys_state": port.phys_state,
            "rate": None if port.rate is None else int(port.rate) if port.rate.is_integer() else port.rate,
            "rate_text": port.rate_text,
            "netdev": port.netdev,
            "bond": port.bond,
            "numa": hardware.hca_numa(hca),
            "pci": hca.pci.address if hca.pci else None,
            "guid": port.guid,
            "lid": port.lid,
            "sm_lid": port.sm_lid,
            "gids": [msgspec.to_builtins(gid) for gid in port.gids],
            "rail": port.name in rails,
            "software": hca.software,
            "virtual_function": hca.virtual,
        }
        | ({"counters": port.counters} if live else {})
        for hca in hardware.host.hcas
        for port in hca.ports
    ]


def _hcas(hardware: Hardware) -> list[Json]:
    return [
        {
            "name": hca.name,
            "model": hca.model,
            "guid": hca.guid,
            "image_guid": hca.image,
            "description": hca.description,
            "firmware": hca.firmware,
            "board": hca.board,
            "pci": hca.pci.address if hca.pci else None,
            "numa": hardware.hca_numa(hca),
            "software": hca.software,
            "virtual_function": hca.virtual,
            "physical_function": hca.pci.physical if hca.pci else None,
            "virtual_functions": hca.pci.virtual_functions if hca.pci else 0,
            "pcie": None
            if hca.pci is None
            else {
                "width": hca.pci.width,
                "max_width": hca.pci.max_width,
                "speed": hca.pci.speed,
                "max_speed": hca.pci.max_speed,
            },
        }
        for hca in (hardware.host.hcas if hardware.host else [])
    ]


def _nic_distances(hardware: Hardware) -> Json:
    table: Json = {}
    for (gpu, hca), word in hardware.rails.distance.items():
        table.setdefault(gpu, {})[hca] = word
    return table


def _hca_links(hardware: Hardware) -> list[list[str]]:
    """Distances between adapters, as rows in the order of ``hcas``."""
    hcas = hardware.host.hcas if hardware.host else []
    rows = []
    for one in hcas:
        row = []
        for other in hcas:
            if one is other:
                row.append("X")
            elif one.pci is None or other.pci is None:
                row.append(DISTANCES[-1])
            else:
                numa = hardware.hca_numa(one), hardware.hca_numa(other)
                row.append(distance(one.pci.path, other.pci.path, numa, hardware.numa_nodes))
        rows.append(row)
    return rows
