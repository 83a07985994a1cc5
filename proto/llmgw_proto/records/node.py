"""What an agent says about its node."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from llmgw_proto.records.base import Record


class CpuFacts(Record):
    model: str = ""
    sockets: int = 1
    cores: int = Field(description="logical CPUs that this machine may use")


class MemoryFacts(Record):
    total_bytes: int


class DiskFacts(Record):
    """The file system that holds a path llmgw writes to."""

    path: str
    total_bytes: int
    free_bytes: int


class GpuFacts(Record):
    """One GPU (or MIG instance), known by its UUID and never by an index."""

    uuid: str
    name: str
    gpu_class: str = Field(default="", description="for example H100-80GB")
    memory_bytes: int
    pci: str = Field(default="", description="0000:1b:00.0")
    numa: int | None = None
    quarantine: str | None = Field(default=None, description="why no replica may use it")


class EngineInfo(Record):
    """An engine that can be started on the node."""

    name: str
    version: str
    detail: str = Field(default="", description="which program or package, for people")
    default: bool = Field(default=False, description="of several versions the one that runs when none is wished")


class InventoryRecord(Record):
    """``nodes/<node>/inventory``: what changes rarely."""

    node: str
    version: str
    boot_id: str
    hostname: str
    os: str = ""
    kernel: str = ""
    cpu: CpuFacts
    memory: MemoryFacts
    disks: list[DiskFacts] = []
    gpus: list[GpuFacts] = []
    engines: list[EngineInfo] = []
    labels: dict[str, str] = {}
    topology: dict[str, Any] = Field(default={}, description="islands, links and fabric ports as `llmgw-agent detect -o json`")
    problems: list[str] = Field(default=[], description="what is wrong with the hardware, in words")


class NodeStatusRecord(Record):
    """``nodes/<node>/status``: what changes often; written on change, at most every 5 s."""

    node: str
    updated_at: float
    memory_available_bytes: int
    load1: float = 0.0
    disks: list[DiskFacts] = []
    problems: list[str] = []


class AliveRecord(Record):
    """``nodes/<node>/alive``, under the agent's lease: present while the agent lives."""

    node: str
    version: str
    started_at: float
    pid: int
    grpc_address: str = Field(description="host:port of the agent's gRPC service")
