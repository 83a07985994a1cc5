"""The host's hardware as one picture: what the probes found, and all that follows from it."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from llmgw_agent.hardware import conditions, islands, nvlink_fabric, nvlink_lanes, port_conditions, rails
from llmgw_agent.hardware.conditions import NODE, Findings
from llmgw_agent.hardware.gpu_class import gpu_class
from llmgw_agent.hardware.health import Report
from llmgw_agent.hardware.host_probe import HostFacts
from llmgw_agent.hardware.interfaces import Interfaces, nccl_env, tell_apart
from llmgw_agent.hardware.numa import cpu_list, cpus, node_of
from llmgw_agent.hardware.pci import PciDevice, distance
from llmgw_agent.hardware.problems import Code, Problem, unique
from llmgw_agent.hardware.raw import Gpu, NvmlFacts
from llmgw_agent.hardware.rdma import Hca
from llmgw_proto.records.node import GpuFacts

#: NVML's words for the nearest common PCI ancestor, by level.
_ANCESTORS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}


@dataclass(frozen=True)
class GpuView:
    """One GPU with what sysfs adds. ``key`` is its UUID, or what else names it while it cannot be read."""

    raw: Gpu
    key: str
    name: str
    gpu_class: str
    pci: PciDevice | None
    address: str | None
    numa: int | None
    cpus: str
    quarantine: str | None


class Hardware:
    """Derived once, from plain facts; nothing here reads anything.

    ``previous`` is the last good look: a GPU that is lost now keeps the identity it had then.
    """

    def __init__(
        self, nvml: NvmlFacts, host: HostFacts | None, trouble: str | None = None, previous: Hardware | None = None
    ) -> None:
        self.nvml = nvml
        self.host = host
        self._findings = Findings()
        self._bad_ports: frozenset[str] = frozenset()
        self._remember(previous)
        self._find_lost()
        if trouble is not None:
            self._findings.problem(Code.PROBE_HUNG, NODE, trouble)
        conditions.judge(
            nvml,
            self._findings,
            module_version=host.host.nvidia_module if host else None,
            container=host.host.container if host else None,
            pci_gpus=len(self._pci_gpus()),
        )
        self.members = nvlink_fabric.judge(nvml.gpus, nvml.links, self._findings)
        self.nvlink = islands.view(nvml.gpus, nvml.links, nvml.pairs, self.members, self._absent_gpu, self._findings)
        nvlink_lanes.judge(nvml.gpus, nvml.links, self.nvlink, self._findings)
        self._mixed()
        if host is not None:
            self._judge_host(host)

    @property
    def problems(self) -> list[Problem]:
        """What is wrong, for people and for dashboards."""
        return unique(self._findings.problems)

    @property
    def notes(self) -> list[str]:
        """What is worth knowing and no problem."""
        return self._findings.notes

    def with_health(self, report: Report) -> Hardware:
        """The same hardware with what live health found: more problems, GPUs quarantined, ports no longer used."""
        other = copy.copy(self)
        for name in ("gpus", "gpu_at"):
            other.__dict__.pop(name, None)
        quarantine = dict(self._findings.quarantine)
        for index, gpu in self.nvml.gpus.items():
            if gpu.uuid is not None and gpu.uuid in report.quarantine:
                quarantine.setdefault(index, report.quarantine[gpu.uuid])
        other._findings = Findings([*self._findings.problems, *report.problems], list(self._findings.notes), quarantine)
        other._bad_ports = frozenset(report.quarantine)
        return other

    # --- GPUs ---

    def _remember(self, previous: Hardware | None) -> None:
        if previous is None:
            return
        for index, gpu in self.nvml.gpus.items():
            before = previous.nvml.gpus.get(index)
            if gpu.error and gpu.uuid is None and before is not None and before.uuid is not None:
                gpu.uuid, gpu.name, gpu.pci, gpu.memory_total = before.uuid, before.name, before.pci, before.memory_total

    def _pci_gpus(self) -> dict[str, PciDevice]:
        devices = self.host.pci if self.host else {}
        # Cards handed to guests or driven by another driver are not this node's to use.
        return {address: card for address, card in devices.items() if card.is_gpu and card.driver in (None, "nvidia")}

    def _find_lost(self) -> None:
        """NVML gives a lost GPU no address; the bus has one that NVML does not list."""
        listed = {gpu.pci for gpu in self.nvml.gpus.values()}
        nameless = [gpu for gpu in self.nvml.gpus.values() if gpu.pci is None]
        unlisted = [address for address in self._pci_gpus() if address not in listed]
        if len(nameless) == len(unlisted):
            for gpu, address in zip(nameless, sorted(unlisted), strict=True):
                gpu.pci = address

    def _absent_gpu(self, address: str) -> bool:
        if self.host is not None and address in self.host.pci:
            return self.host.pci[address].is_gpu
        return any(gpu.pci is None for gpu in self.nvml.gpus.values())

    def _mixed(self) -> None:
        if self.mixed_gpus:
            names = sorted({gpu.gpu_class for gpu in self.gpus if not gpu.raw.error})
            self._findings.notes.append(f"different GPUs in one host ({', '.join(names)}): they are never put into one group")

    @cached_property
    def mixed_gpus(self) -> bool:
        return len({(gpu.name, gpu.memory_total) for gpu in self.nvml.gpus.values() if not gpu.error}) > 1

    @cached_property
    def gpus(self) -> list[GpuView]:
        """All GPUs, the unreadable ones too, in NVML's order."""
        return [self._gpu(gpu) for _, gpu in sorted(self.nvml.gpus.items())]

    def _gpu(self, gpu: Gpu) -> GpuView:
        card = self.host.pci.get(gpu.pci) if self.host and gpu.pci else None
        near = cpus(card.cpus) if card and card.cpus else frozenset(gpu.cpus)
        name = gpu.name or ""
        return GpuView(
            raw=gpu,
            key=conditions.subject(gpu),
            name=name,
            gpu_class=gpu_class(name, gpu.memory_total or 0) if name else "",
            pci=card,
            address=gpu.pci,
            numa=node_of(self.host.numa if self.host else [], card.numa if card else None, near or frozenset(gpu.cpus)),
            cpus=cpu_list(near),
            quarantine=self._findings.quarantine.get(gpu.index),
        )

    def gpu_facts(self) -> list[GpuFacts]:
        """What replicas can be placed on: whole GPUs, and the MIG instances of those that are cut up."""
        return [facts for gpu in self.gpus if gpu.raw.uuid is not None for facts in _facts(gpu)]

    # --- distances, rails ---

    def between(self, one: int, other: int) -> str:
        """How two GPUs reach each other: ``NV4`` over four NVLinks, else the PCIe distance."""
        a, b = min(one, other), max(one, other)
        if links := self.nvlink.joined.get((a, b)):
            return f"NV{links}"
        first, second = self.gpu_at[a], self.gpu_at[b]
        if first.pci is not None and second.pci is not None:
            return distance(first.pci.path, second.pci.path, (first.numa, second.numa), self.numa_nodes)
        pair = next((pair for pair in self.nvml.pairs if (pair.a, pair.b) == (a, b)), None)
        return _ANCESTORS.get(pair.ancestor if pair and pair.ancestor is not None else -1, "UNKNOWN")

    @cached_property
    def gpu_at(self) -> dict[int, GpuView]:
        return {gpu.raw.index: gpu for gpu in self.gpus}

    @cached_property
    def numa_nodes(self) -> int:
        """Nodes with CPUs; memory-only ones (a GPU's own) do not count."""
        return sum(bool(node.cpus) for node in self.host.numa) if self.host else 0

    @cached_property
    def rails(self) -> rails.Rails:
        if self.host is None:
            return rails.Rails()
        places = {gpu.key: (gpu.pci, gpu.numa) for gpu in self.gpus}
        # Without a driver the cards on the bus still tell where they are.
        listed = {gpu.address for gpu in self.gpus}
        for address, card in self._pci_gpus().items():
            if address not in listed:
                places[address] = card, node_of(self.host.numa, card.numa, cpus(card.cpus))

        def measure(gpu: str, hca: Hca) -> str:
            card, numa = places[gpu]
            own = self.hca_numa(hca)
            if card is None or hca.pci is None:
                return distance([], [], (numa, own), self.numa_nodes) if self.numa_nodes > 1 else "UNKNOWN"
            return distance(card.path, hca.pci.path, (numa, own), self.numa_nodes)

        return rails.derive(places, self.host.hcas, measure)

    def hca_numa(self, hca: Hca) -> int | None:
        if self.host is None or hca.pci is None:
            return None
        return node_of(self.host.numa, hca.pci.numa, cpus(hca.pci.cpus))

    def pci_groups(self) -> list[list[int]]:
        """Alike GPUs without NVLink that share a NUMA node or better; for two-way groups on cards such as L40S."""
        joined = {gpu for island in self.nvlink.islands for gpu in island.gpus}
        groups: list[list[int]] = []
        for gpu in self.gpus:
            index = gpu.raw.index
            cut = gpu.raw.mig is not None and gpu.raw.mig.current
            if gpu.raw.error or index in joined or cut or not self.members[index].ready:
                continue
            for group in groups:
                other = self.gpu_at[group[0]]
                alike = other.name == gpu.name and other.raw.memory_total == gpu.raw.memory_total
                if alike and self.between(group[0], index) in ("PIX", "PXB", "PHB", "NODE"):
                    group.append(index)
                    break
            else:
                groups.append([index])
        return [group for group in groups if len(group) > 1]

    # --- host ---

    @cached_property
    def interfaces(self) -> Interfaces:
        if self.host is None:
            return Interfaces(None, [])
        return tell_apart(self.host.netdevs, self.rails.rails, self.host.default_route)

    def nccl_env(self, peer: str | None = None) -> dict[str, str]:
        """The environment for engines; ``peer`` is an address given to :func:`detect.detect`, whose route then decides."""
        route = self.host.routes.get(peer) if self.host is not None and peer is not None else None
        rails = [port for port in self.rails.rails if port.name not in self._bad_ports]
        return nccl_env(rails, route[0] if route else self.interfaces.management, self.mixed_gpus)

    def _judge_host(self, host: HostFacts) -> None:
        working = self.nvml.system is not None and not self.nvml.system.error
        listed = {gpu.pci for gpu in self.nvml.gpus.values()}
        if working and self.nvml.complete and not self.nvml.hung:
            for address in sorted(self._pci_gpus().keys() - listed):
                self._findings.problem(
                    Code.GPU_FELL_OFF,
                    address,
                    "an NVIDIA GPU is on the PCI bus, but the driver does not list it: it failed when the driver "
                    "started; see 'dmesg'",
                )
        serves: dict[str, list[str]] = {}
        for gpu, names in self.rails.nearest.items():
            for name in names:
                serves.setdefault(name, []).append(gpu)
        port_conditions.judge_ports(host.hcas, self.rails.wanted, serves, self._findings)
        port_conditions.judge_bonds(host.netdevs, self._findings)
        cards = [(gpu.key, gpu.pci) for gpu in self.gpus if gpu.pci is not None]
        cards += [(hca.name, hca.pci) for hca in rails.usable(host.hcas) if hca.pci is not None]
        port_conditions.judge_pcie(cards, self._findings)
        if not host.host.clock.plausible:
            self._findings.problem(
                Code.CLOCK_WRONG,
                NODE,
                "the clock is years off: certificates will not verify; set it, and run chrony or systemd-timesyncd",
            )
        elif host.host.clock.synchronised is False:
            self._findings.notes.append(
                "the clock is not synchronised by the kernel's reckoning: run chrony or systemd-timesyncd"
            )

    def topology(self) -> dict[str, Any]:
        """JSON for ``InventoryRecord.topology``: ``llmgw-agent detect -o json`` without what changes from second to second."""
        from llmgw_agent.hardware.topology import as_json

        return as_json(self, live=False)


def _facts(gpu: GpuView) -> list[GpuFacts]:
    def facts(uuid: str, name: str, memory: int) -> GpuFacts:
        return GpuFacts(
            uuid=uuid,
            name=name,
            gpu_class=gpu_class(name, memory) if name else "",
            memory_bytes=memory,
            pci=gpu.address or "",
            numa=gpu.numa,
            quarantine=gpu.quarantine,
        )

    mig = gpu.raw.mig
    if mig is not None and mig.current:
        return [facts(part.uuid, part.name or "", part.memory_total or 0) for part in mig.instances if part.uuid is not None]
    assert gpu.raw.uuid is not None
    return [facts(gpu.raw.uuid, gpu.name, gpu.raw.memory_total or 0)]
