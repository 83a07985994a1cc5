"""From samples to observations. Pure, but for what it remembers of earlier samples."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from llmgw_agent.hardware import throttle
from llmgw_agent.hardware.conditions import RECOVERY
from llmgw_agent.hardware.raw import GpuSample, PortSample

Seen = tuple[str, str, str]
"""Subject, name of the observation (a key of the rules), detail."""

_FLAPS, _FLAP_WINDOW = 3, 600.0
_BUSY = 50
_ERROR_COUNTERS = ("symbol_error", "link_error_recovery", "local_link_integrity_errors", "port_rcv_errors")
_ERRORS_PER_MINUTE = 60
_ERROR_WINDOW = 60.0


@dataclass
class _GpuMemory:
    ecc: int | None = None
    width: int = 0
    loaded_gen: int = 0
    links_up: frozenset[int] = frozenset()
    links_down: frozenset[int] = frozenset()


@dataclass
class _PortMemory:
    was_active: bool = False
    rate: float = 0.0
    downed: int | None = None
    flaps: deque[float] = field(default_factory=deque)
    errors: deque[tuple[float, int]] = field(default_factory=deque)


class Observer:
    """Keeps the baselines that changes are measured against: the widest PCIe link seen, counters, ports that were up."""

    def __init__(self) -> None:
        self._gpus: dict[str, _GpuMemory] = {}
        self._ports: dict[str, _PortMemory] = {}

    def gpus(self, samples: Iterable[GpuSample]) -> list[Seen]:
        return [(gpu.uuid, name, detail) for gpu in samples for name, detail in self._gpu(gpu)]

    def _gpu(self, gpu: GpuSample) -> list[tuple[str, str]]:
        if gpu.error:
            return [("lost", "")]
        memory = self._gpus.setdefault(gpu.uuid, _GpuMemory())
        seen: list[tuple[str, str]] = []
        if gpu.reset_required:
            seen.append(("reset-required", ""))
        if gpu.recovery_action:
            seen.append(("recovery", RECOVERY.get(gpu.recovery_action, f"action {gpu.recovery_action}")))
        if gpu.remapped is not None and gpu.remapped[3]:
            seen.append(("remap-failed", ""))
        elif gpu.remapped is not None and gpu.remapped[2]:
            seen.append(("remap-pending", ""))
        if gpu.retired_pending:
            seen.append(("retired-pending", ""))
        if gpu.ecc_uncorrected is not None:
            if memory.ecc is not None and gpu.ecc_uncorrected > memory.ecc:
                seen.append(("ecc", f"{gpu.ecc_uncorrected - memory.ecc} new"))
            memory.ecc = gpu.ecc_uncorrected
        seen += _throttling(gpu)
        seen += _pcie(gpu, memory)
        seen += _nvlink(gpu, memory)
        return seen

    def ports(self, now: float, samples: Iterable[PortSample]) -> list[Seen]:
        """``now`` in seconds of a monotonic clock."""
        return [(port.name, name, detail) for port in samples for name, detail in self._port(now, port)]

    def _port(self, now: float, port: PortSample) -> list[tuple[str, str]]:
        memory = self._ports.setdefault(port.name, _PortMemory())
        seen: list[tuple[str, str]] = []
        if port.state == "ACTIVE":
            memory.was_active = True
            if port.rate is not None and port.rate < memory.rate:
                seen.append(("port-slow", f"{port.rate:g}"))
            memory.rate = max(memory.rate, port.rate or 0)
        elif memory.was_active:
            # A port that was never up in this agent's life is unused, not broken.
            seen.append(("port-down", f"{port.state}/{port.phys_state}"))
        seen += _flapping(now, port, memory)
        seen += _errors(now, port, memory)
        return seen


def _throttling(gpu: GpuSample) -> list[tuple[str, str]]:
    mask, heat = gpu.throttle or 0, "" if gpu.temperature is None else f"{gpu.temperature} °C"
    seen = []
    if mask & throttle.HW_THERMAL:
        seen.append(("thermal", heat))
    elif mask & throttle.SW_THERMAL:
        seen.append(("thermal-soft", heat))
    if mask & throttle.POWER_BRAKE:
        seen.append(("power-brake", ""))
    return seen


def _pcie(gpu: GpuSample, memory: _GpuMemory) -> list[tuple[str, str]]:
    seen = []
    if gpu.pcie_width:
        if gpu.pcie_width < memory.width:
            seen.append(("pcie-width", f"{gpu.pcie_width} of {memory.width}"))
        memory.width = max(memory.width, gpu.pcie_width)
    # An idle card lowers its speed to save power; only under load does it tell something.
    if gpu.pcie_gen and gpu.utilization is not None and gpu.utilization[0] >= _BUSY:
        if gpu.pcie_gen < memory.loaded_gen:
            seen.append(("pcie-speed", f"generation {gpu.pcie_gen} instead of {memory.loaded_gen}"))
        memory.loaded_gen = max(memory.loaded_gen, gpu.pcie_gen)
    return seen


def _nvlink(gpu: GpuSample, memory: _GpuMemory) -> list[tuple[str, str]]:
    if gpu.links is not None:
        up = frozenset(link.link for link in gpu.links if link.up)
        memory.links_down = memory.links_up - up
        memory.links_up |= up
    if not memory.links_down:
        return []
    return [("nvlink-down", "links " + ", ".join(str(link) for link in sorted(memory.links_down)))]


def _flapping(now: float, port: PortSample, memory: _PortMemory) -> list[tuple[str, str]]:
    downed = port.counters.get("link_downed")
    if downed is not None:
        if memory.downed is not None:
            memory.flaps.extend([now] * min(max(0, downed - memory.downed), _FLAPS))
        memory.downed = downed
    while memory.flaps and memory.flaps[0] < now - _FLAP_WINDOW:
        memory.flaps.popleft()
    if len(memory.flaps) < _FLAPS:
        return []
    return [("port-flapping", f"{len(memory.flaps)} times in {_FLAP_WINDOW / 60:.0f} minutes")]


def _errors(now: float, port: PortSample, memory: _PortMemory) -> list[tuple[str, str]]:
    total = sum(port.counters.get(name, 0) for name in _ERROR_COUNTERS)
    if memory.errors and total < memory.errors[-1][1]:
        # The counters were cleared.
        memory.errors.clear()
    memory.errors.append((now, total))
    while len(memory.errors) > 1 and memory.errors[1][0] <= now - _ERROR_WINDOW:
        memory.errors.popleft()
    new = total - memory.errors[0][1]
    return [("port-errors", f"{new} in a minute")] if new >= _ERRORS_PER_MINUTE else []
