"""What an observation means: the table of live health. Pure data.

An observation is something seen in a sample or told by an event. Its rule says which condition it raises, whether the GPU or
port is quarantined for it, how long it must last first, and how it is lifted:

CLEARED   the observation has been gone for ``quiet`` seconds
RETEST    nothing new for ``quiet`` seconds, and then a fresh look at the GPU finds nothing wrong
OPERATOR  only an operator lifts it (or a reboot of the node)
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from llmgw_agent.hardware.problems import Code


class Lift(Enum):
    CLEARED = "when it has cleared"
    RETEST = "after a re-test"
    OPERATOR = "by the operator"


@dataclass(frozen=True)
class Rule:
    """``lasting``: seconds that the observation must last before it counts. ``{detail}`` in the text is filled in."""

    code: Code
    quarantine: bool
    lift: Lift
    quiet: float
    text: str
    lasting: float = 0.0


#: By the name of the observation.
RULES: dict[str, Rule] = {
    # GPUs
    "lost": Rule(Code.GPU_LOST, True, Lift.RETEST, 60, "the GPU has fallen off the bus: reset it or reboot the node"),
    "hung": Rule(Code.TELEMETRY_HUNG, True, Lift.RETEST, 60, "a driver call for this GPU does not return: see 'dmesg'"),
    "reset-required": Rule(
        Code.GPU_RESET_REQUIRED, True, Lift.CLEARED, 0, "the GPU needs a reset: drain it, then nvidia-smi --gpu-reset"
    ),
    "recovery": Rule(Code.RECOVERY_ACTION, True, Lift.CLEARED, 0, "the driver asks for recovery: {detail}"),
    "remap-pending": Rule(
        Code.ROW_REMAP_PENDING, True, Lift.CLEARED, 0, "a memory row waits to be remapped: drain the GPU and reset it"
    ),
    "remap-failed": Rule(Code.ROW_REMAP_FAILED, True, Lift.OPERATOR, 0, "a memory row could not be remapped: replace the GPU"),
    "retired-pending": Rule(
        Code.RETIRED_PAGES_PENDING, True, Lift.CLEARED, 0, "a memory page waits to be retired: drain the GPU and reset it"
    ),
    "ecc": Rule(Code.ECC_UNCORRECTED, True, Lift.RETEST, 600, "uncorrectable memory errors ({detail}): data may be damaged"),
    "thermal": Rule(
        Code.THERMAL,
        True,
        Lift.CLEARED,
        120,
        "the hardware slows the GPU down for heat ({detail}): check fans and air",
        lasting=10,
    ),
    "thermal-soft": Rule(
        Code.THERMAL,
        False,
        Lift.CLEARED,
        120,
        "the driver lowers the clocks for heat ({detail}): check fans and air",
        lasting=60,
    ),
    "power-brake": Rule(
        Code.POWER_BRAKE,
        True,
        Lift.CLEARED,
        120,
        "the power supply signals overload: check the supplies and power caps",
        lasting=10,
    ),
    "pcie-width": Rule(
        Code.PCIE_WIDTH, True, Lift.CLEARED, 60, "PCIe fell to {detail} lanes: reseat the card or riser", lasting=3
    ),
    "pcie-speed": Rule(
        Code.PCIE_SPEED, True, Lift.CLEARED, 60, "PCIe runs at {detail} under load: reseat the card or its riser", lasting=30
    ),
    "nvlink-down": Rule(Code.NVLINK_DEGRADED, True, Lift.CLEARED, 60, "NVLinks went down ({detail}): reset the GPU"),
    # XIDs by what the driver's documentation asks for
    "xid-fatal": Rule(Code.XID, True, Lift.OPERATOR, 0, "XID {detail}: the GPU needs service or a reboot of the node"),
    "xid-reset": Rule(Code.XID, True, Lift.RETEST, 600, "XID {detail}: the GPU needs a reset"),
    "xid-watch": Rule(Code.XID, False, Lift.CLEARED, 3600, "XID {detail}: often the program's fault; watch for repeats"),
    # ports
    "port-down": Rule(Code.IB_PORT_DOWN, True, Lift.CLEARED, 30, "the port went down ({detail}): check cable and switch port"),
    "port-flapping": Rule(
        Code.IB_PORT_FLAPPING, True, Lift.CLEARED, 1800, "the link keeps going down ({detail}): replace the cable"
    ),
    "port-errors": Rule(
        Code.IB_PORT_ERRORS, False, Lift.CLEARED, 600, "the link has errors ({detail}): clean or replace the cable"
    ),
    "port-slow": Rule(
        Code.IB_PORT_SLOW, False, Lift.CLEARED, 60, "the link fell to {detail} Gb/s: check cable and switch port", lasting=5
    ),
}

_XIDS: dict[int, tuple[str, str]] = {
    13: ("xid-watch", "graphics engine exception"),
    31: ("xid-watch", "memory page fault"),
    43: ("xid-watch", "a program's channel was stopped"),
    45: ("xid-watch", "a program was stopped in the middle"),
    46: ("xid-reset", "the GPU stopped processing"),
    48: ("xid-reset", "double-bit ECC error"),
    54: ("xid-fatal", "auxiliary power is not connected"),
    61: ("xid-reset", "internal microcontroller breakpoint"),
    62: ("xid-reset", "internal microcontroller halt"),
    63: ("xid-watch", "memory row remapped or page retired"),
    64: ("xid-reset", "memory row remapping or page retirement failed"),
    68: ("xid-watch", "video processor exception"),
    69: ("xid-watch", "graphics engine class error"),
    74: ("xid-reset", "NVLink error"),
    79: ("xid-fatal", "the GPU has fallen off the bus"),
    92: ("xid-watch", "high rate of single-bit ECC errors"),
    94: ("xid-watch", "contained memory error: the program that met it must restart"),
    95: ("xid-reset", "uncontained memory error"),
    109: ("xid-reset", "context switch timeout"),
    119: ("xid-reset", "the GPU's system processor does not answer"),
    120: ("xid-reset", "error in the GPU's system processor"),
    121: ("xid-watch", "corrected error on the chip-to-chip link"),
    136: ("xid-reset", "link training failed"),
    137: ("xid-watch", "NVLink remote page fault"),
    140: ("xid-reset", "unrecovered ECC error"),
    143: ("xid-reset", "GPU initialisation error"),
    144: ("xid-reset", "NVLink error"),
    145: ("xid-reset", "NVLink error"),
    146: ("xid-reset", "NVLink error"),
    147: ("xid-reset", "NVLink error"),
    148: ("xid-reset", "NVLink error"),
    149: ("xid-reset", "NVLink error"),
    150: ("xid-reset", "NVLink error"),
    151: ("xid-reset", "key rotation error"),
    154: ("xid-watch", "the recovery action of the GPU changed"),
    155: ("xid-reset", "NVLink failed in software"),
    156: ("xid-watch", "a resource was retired"),
    158: ("xid-reset", "fatal timeout in the GPU"),
}


def xid(number: int) -> tuple[str, str]:
    """The observation that an XID is, and its text. One that is not known is watched: most are programs' faults."""
    observation, meaning = _XIDS.get(number, ("xid-watch", "see the driver's documentation"))
    return observation, f"{number} ({meaning})"
