"""What the helper processes print, typed. The agent's side; the helpers write plain dicts to stay small."""

from __future__ import annotations

import msgspec


class At(msgspec.Struct, tag_field="kind", tag="at"):
    """The helper is about to do this; when nothing follows, this is what hangs."""

    step: str
    index: int | None = None


class System(msgspec.Struct, tag_field="kind", tag="system"):
    """``error`` is NVML's code at initialisation, 0 when it works."""

    error: int
    count: int = 0
    driver: str | None = None
    nvml: str | None = None
    cuda: int | None = None


class Fabric(msgspec.Struct):
    state: int
    status: int
    cluster: str
    clique: int
    health_mask: int = 0
    health_summary: int | None = None


class Platform(msgspec.Struct):
    chassis: str = ""
    slot: int = 0
    tray: int = 0
    host: int = 0
    module: int = 0


class Process(msgspec.Struct):
    pid: int
    memory: int | None = None


class MigInstance(msgspec.Struct):
    uuid: str | None
    name: str | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None
    memory_total: int | None = None
    memory_used: int | None = None


class Mig(msgspec.Struct):
    current: int
    pending: int
    instances: list[MigInstance] = []


class Live(msgspec.Struct):
    """The part of a GPU's facts that changes from second to second. Power in mW, clocks in MHz, temperature in °C."""

    temperature: int | None = None
    power: int | None = None
    utilization: list[int] | None = None
    clock_sm: int | None = None
    clock_mem: int | None = None
    throttle: int | None = None
    pcie_gen: int | None = None
    pcie_width: int | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    remapped: list[int] | None = None
    retired_pending: int | None = None
    recovery_action: int | None = None
    memory_total: int | None = None
    memory_used: int | None = None


class Gpu(Live, tag_field="kind", tag="gpu", kw_only=True):
    """One GPU; ``error`` is NVML's code for the handle, 0 when it can be read."""

    index: int
    error: int
    uuid: str | None = None
    name: str | None = None
    pci: str | None = None
    serial: str | None = None
    minor: int | None = None
    vbios: str | None = None
    arch: int | None = None
    cc: list[int] | None = None
    module: int | None = None
    virtualization: int | None = None
    hbm_numa: int | None = None
    numa_nodes: list[int] = []
    cpus: list[int] = []
    power_limit: int | None = None
    power_default: int | None = None
    power_enforced: int | None = None
    power_range: list[int] | None = None
    ecc: list[int] | None = None
    persistence: int | None = None
    clock_max_sm: int | None = None
    clock_max_mem: int | None = None
    pcie_max_gen: int | None = None
    pcie_max_width: int | None = None
    temp_slowdown: int | None = None
    retired_pages: int | None = None
    fabric: Fabric | None = None
    platform: Platform | None = None
    processes: list[Process] = []
    mig: Mig | None = None
    failed: dict[str, int] = {}
    denied: list[str] = []
    reset_required: bool = False


class Link(msgspec.Struct):
    """One NVLink. ``remote`` is None when the driver does not tell the other end."""

    link: int
    state: int
    version: int | None = None
    speed: int | None = None
    remote_type: int | None = None
    remote: str | None = None
    p2p: bool | None = None
    errors: dict[str, int] = {}

    @property
    def up(self) -> bool:
        """Active, or asleep to save power."""
        return self.state in (1, 2)


class Links(msgspec.Struct, tag_field="kind", tag="links"):
    index: int
    links: list[Link]
    switch_links: int | None = None
    c2c: int | None = None
    error: int = 0


class Pair(msgspec.Struct):
    a: int
    b: int
    ancestor: int | None = None
    read: int | None = None
    nvlink: int | None = None


class Pairs(msgspec.Struct, tag_field="kind", tag="pairs"):
    pairs: list[Pair]


class End(msgspec.Struct, tag_field="kind", tag="end"):
    pass


Line = At | System | Gpu | Links | Pairs | End


class GpuSample(Live, kw_only=True):
    """One GPU in one sample. ``links`` and ``processes`` come every few samples only, None in between."""

    index: int
    uuid: str
    error: int = 0
    power_limit: int | None = None
    reset_required: bool = False
    links: list[Link] | None = None
    nvlink_bytes: list[int | None] | None = None
    processes: list[Process] | None = None
    pcie_replays: int | None = None


class Sample(msgspec.Struct, tag_field="kind", tag="sample"):
    """All GPUs at one moment; ``error`` is NVML's code when it cannot be initialised.

    ``unopened``: index → NVML's code of GPUs that could not be opened when the helper started.
    """

    error: int = 0
    gpus: list[GpuSample] = []
    unopened: dict[int, int] = {}


class PortSample(msgspec.Struct):
    hca: str
    port: int
    state: str
    phys_state: str
    link_layer: str = "InfiniBand"
    rate: float | None = None
    counters: dict[str, int] = {}

    @property
    def name(self) -> str:
        return f"{self.hca}:{self.port}"


class Ports(msgspec.Struct, tag_field="kind", tag="ports"):
    """``counted``: the counters are fresh; otherwise those of the last reading are repeated."""

    ports: list[PortSample]
    counted: bool = True


class Event(msgspec.Struct, tag_field="kind", tag="event"):
    """``type`` is NVML's bit: 8 for an XID, whose number is ``data``; 2 for a double-bit ECC error."""

    uuid: str
    type: int
    data: int


class Stuck(msgspec.Struct, tag_field="kind", tag="stuck"):
    """The helper's own watchdog: the GPU thread has been in one GPU's calls for too long, or the port thread in sysfs."""

    index: int | None = None
    uuid: str | None = None
    ports: bool = False


class PowerAnswer(msgspec.Struct, tag_field="kind", tag="power"):
    """``error`` is NVML's code, 0 when the limit (mW) is set."""

    uuid: str
    limit: int
    error: int = 0


TelemetryLine = Sample | Ports | Event | Stuck | PowerAnswer


class NvmlFacts(msgspec.Struct):
    """All that one or more runs of the probe found."""

    system: System | None = None
    gpus: dict[int, Gpu] = {}
    links: dict[int, Links] = {}
    pairs: list[Pair] = []
    last: At | None = None
    complete: bool = False
    hung: list[At] = []
    crashed: str | None = None

    def finished(self) -> bool:
        """Whether another run of the probe can add nothing."""
        return self.complete or self.crashed is not None or any(step.index is None for step in self.hung)

    def begin(self) -> None:
        """A new run of the probe starts."""
        self.last = None

    def at_gpu(self) -> bool:
        """Whether the probe is at a step of one GPU now."""
        return self.last is not None and self.last.index is not None

    def take(self, line: Line) -> None:
        match line:
            case At():
                self.last = line
            case System():
                self.system = line
            case Gpu():
                self.gpus[line.index] = line
            case Links():
                self.links[line.index] = line
            case Pairs(pairs=pairs):
                self.pairs = pairs
            case End():
                self.complete = True
