"""Whether the clock can be trusted: certificates and tokens expire by it, and hosts compare times."""

from __future__ import annotations

import ctypes
import time

import msgspec

#: The day this program was made possible at the earliest; a clock before it is wrong for sure.
_NOT_BEFORE = 1_735_689_600  # 2025-01-01
_NOT_AFTER = _NOT_BEFORE + 50 * 365 * 86_400
_UNSYNCHRONISED = 0x0040


class ClockFacts(msgspec.Struct):
    """``synchronised`` and the estimated error come from the kernel's time discipline (set by chrony, ntpd, timesyncd)."""

    synchronised: bool | None = None
    error_seconds: float | None = None
    plausible: bool = True


class _Timex(ctypes.Structure):
    _fields_ = [
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 160),
    ]


def read() -> ClockFacts:
    """Asks the kernel, changing nothing (``adjtimex`` with no mode set)."""
    now = time.time()
    facts = ClockFacts(plausible=_NOT_BEFORE <= now <= _NOT_AFTER)
    try:
        adjtimex = ctypes.CDLL(None).adjtimex
    except (OSError, AttributeError):
        return facts
    state = _Timex()
    if adjtimex(ctypes.byref(state)) < 0:
        return facts
    facts.synchronised = not state.status & _UNSYNCHRONISED
    facts.error_seconds = state.maxerror / 1e6
    return facts
