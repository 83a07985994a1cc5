"""Named conditions of the hardware."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Code(StrEnum):
    """What can be wrong. The code is stable: dashboards, tests and runbooks refer to it. ``docs/hardware.md`` lists them."""

    NO_DRIVER = "no-driver"
    NO_LIBRARY = "no-nvml-library"
    DRIVER_MISMATCH = "driver-mismatch"
    NO_PERMISSION = "no-permission"
    CONTAINER_LOST_DEVICES = "container-lost-devices"
    NVML_FAILED = "nvml-failed"
    PROBE_HUNG = "probe-hung"
    PROBE_FAILED = "probe-failed"
    GPU_LOST = "gpu-lost"
    GPU_RESET_REQUIRED = "gpu-reset-required"
    GPU_UNREADABLE = "gpu-unreadable"
    GPU_FELL_OFF = "gpu-fell-off-bus"
    MIG_PENDING = "mig-change-pending"
    ROW_REMAP_PENDING = "row-remap-pending"
    ROW_REMAP_FAILED = "row-remap-failed"
    RETIRED_PAGES_PENDING = "retired-pages-pending"
    ECC_UNCORRECTED = "ecc-uncorrected"
    XID = "xid"
    FOREIGN_PROCESS = "foreign-process"
    RECOVERY_ACTION = "recovery-action"
    THERMAL = "thermal-throttle"
    POWER_BRAKE = "power-brake"
    PCIE_WIDTH = "pcie-width"
    PCIE_SPEED = "pcie-speed"
    NVLINK_DEGRADED = "nvlink-degraded"
    NVLINK_ASYMMETRIC = "nvlink-asymmetric"
    NVLINK_P2P_DISAGREE = "nvlink-p2p-disagree"
    FABRIC_NOT_READY = "fabric-not-ready"
    FABRIC_FAILED = "fabric-failed"
    FABRIC_UNHEALTHY = "fabric-unhealthy"
    FABRIC_NOT_REGISTERED = "fabric-not-registered"
    IB_PORT_DOWN = "ib-port-down"
    IB_PORT_NOT_ACTIVE = "ib-port-not-active"
    IB_PORT_SLOW = "ib-port-slow"
    IB_PORT_FLAPPING = "ib-port-flapping"
    IB_PORT_ERRORS = "ib-port-errors"
    BOND_DEGRADED = "bond-degraded"
    CLOCK_WRONG = "clock-wrong"
    TELEMETRY_HUNG = "telemetry-hung"


@dataclass(frozen=True)
class Problem:
    """One condition: its code, what it is about (a GPU's UUID, ``mlx5_0:1``, an interface, ``node``), and cause and remedy."""

    code: str
    subject: str
    text: str

    def as_json(self) -> dict[str, str]:
        return {"code": str(self.code), "subject": self.subject, "text": self.text}

    def __str__(self) -> str:
        return f"{self.code} ({self.subject}): {self.text}"


def unique(problems: Iterable[Problem]) -> list[Problem]:
    """The problems in order, each (code, subject) once."""
    seen: dict[tuple[str, str], Problem] = {}
    for problem in problems:
        seen.setdefault((problem.code, problem.subject), problem)
    return list(seen.values())
