"""Why a GPU's clocks are lower than they could be: NVML's bit mask in words."""

from __future__ import annotations

IDLE, APPLICATION_CLOCKS, SW_POWER_CAP, HW_SLOWDOWN = 0x1, 0x2, 0x4, 0x8
SYNC_BOOST, SW_THERMAL, HW_THERMAL, POWER_BRAKE, DISPLAY = 0x10, 0x20, 0x40, 0x80, 0x100

_WORDS = {
    IDLE: "idle",
    APPLICATION_CLOCKS: "application clocks",
    SW_POWER_CAP: "power cap",
    HW_SLOWDOWN: "hardware slowdown",
    SYNC_BOOST: "sync boost",
    SW_THERMAL: "thermal (software)",
    HW_THERMAL: "thermal (hardware)",
    POWER_BRAKE: "power brake",
    DISPLAY: "display clocks",
}


def throttle_words(mask: int | None) -> list[str]:
    """The reasons that are set, in NVML's order."""
    return [word for bit, word in _WORDS.items() if mask is not None and mask & bit]
