"""``nodes/<node>/inventory``: what changes rarely, put together from the facts."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmgw_agent import __version__
from llmgw_agent.config import AgentConfig
from llmgw_agent.engines.registry import Drivers, installed
from llmgw_agent.host.cpu import read_cpu
from llmgw_agent.host.disk import read_disks
from llmgw_agent.host.memory import read_memory
from llmgw_agent.host.system import kernel, os_name
from llmgw_agent.process.identity import boot_id
from llmgw_proto.records import DiskFacts, GpuFacts, InventoryRecord, MemoryFacts
from llmgw_proto.records.model import parse_bytes


@dataclass(frozen=True, slots=True)
class Devices:
    """GPUs and what connects them, as ``llmgw_agent.hardware`` found them."""

    gpus: list[GpuFacts] = field(default_factory=list)
    topology: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def read_inventory(config: AgentConfig, drivers: Drivers, devices: Devices) -> InventoryRecord:
    """Reads files and runs engines for their version: call it in a thread. The memory named is what engines may use."""
    return InventoryRecord(
        node=config.node.name,
        version=__version__,
        boot_id=boot_id(),
        hostname=socket.gethostname(),
        os=os_name(),
        kernel=kernel(),
        cpu=read_cpu(),
        memory=MemoryFacts(total_bytes=memory_for_engines(config)),
        disks=[_coarse(disk) for disk in read_disks(written_paths(config))],
        gpus=devices.gpus,
        engines=installed(drivers),
        labels=config.node.labels,
        topology=devices.topology,
        problems=devices.problems,
    )


def _coarse(disk: DiskFacts) -> DiskFacts:
    """Free space in steps of a twentieth: the exact figure is in the status, and the inventory shall change rarely."""
    step = max(1, disk.total_bytes // 20)
    return disk.model_copy(update={"free_bytes": disk.free_bytes // step * step})


def memory_for_engines(config: AgentConfig) -> int:
    return max(0, read_memory().total - parse_bytes(config.node.reserved_memory))


def written_paths(config: AgentConfig) -> list[Path]:
    return [config.state_dir]
