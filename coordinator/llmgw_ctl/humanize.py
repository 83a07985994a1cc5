"""Figures for people: durations, sizes, ages; and durations as people type them."""

from __future__ import annotations

import re
from datetime import datetime

from llmgw_ctl.errors import BadInputError

_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s?)?")


def duration(seconds: float) -> str:
    """The two largest units: ``0.4s``, ``12s``, ``3m12s``, ``2h5m``, ``4d3h``."""
    if seconds < 9.95:
        return f"{max(seconds, 0):.1f}s"
    rest = round(seconds)
    parts = []
    for unit, size in _UNITS:
        count, rest = divmod(rest, size)
        parts.append((count, unit))
    first = next(index for index, (count, _) in enumerate(parts) if count)
    return "".join(f"{count}{unit}" for count, unit in parts[first : first + 2] if count)


def age(since: float | None, now: float) -> str:
    """How long ago a Unix time was, in whole seconds and up; ``-`` when it is not known."""
    if since is None:
        return "-"
    seconds = int(max(now - since, 0))
    return f"{seconds}s" if seconds < 10 else duration(seconds)


def size(count: float | None) -> str:
    """Bytes as ``512 B``, ``1.5 KiB``, ``15.6 GiB``; ``-`` when not known."""
    if count is None:
        return "-"
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if value < 1023.95 or unit == "PiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"


def parse_duration(text: str) -> float:
    """Reads ``90``, ``90s``, ``5m``, ``1h30m`` as seconds.

    Raises:
        BadInputError: not a duration.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None or not any(match.groups()):
        raise BadInputError(f"{text!r} is not a duration", "write for example 90s, 5m or 1h30m")
    days, hours, minutes, seconds = (float(group or 0) for group in match.groups())
    return days * 86_400 + hours * 3_600 + minutes * 60 + seconds


def parse_moment(text: str, now: float) -> float:
    """Reads how long ago (``10m``) or when (RFC 3339: ``2026-01-31T08:00:00Z``; without a zone: local time) as Unix time.

    Raises:
        BadInputError: neither of the two.
    """
    try:
        return max(0.0, now - parse_duration(text))
    except BadInputError:
        pass
    try:
        return max(0.0, datetime.fromisoformat(text.strip()).astimezone().timestamp())
    except (ValueError, OverflowError, OSError):
        remedy = "write for example 10m, 1h30m or 2026-01-31T08:00:00Z"
        raise BadInputError(f"{text!r} is neither a duration nor a time", remedy) from None
