"""How an unfinished download goes on. Decisions only; :mod:`.receive` acts on them.

A part is trusted up to its length, since what a killed process wrote is with the kernel. After a power cut or a reboot only
what was flushed to the disk counts. Where a digest is promised, any place that has the content may continue a part; where
none is, only the same URL with the same validator may (``If-Range``), since another version's tail would go unnoticed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from pydantic import BaseModel, ConfigDict

_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")


class PartState(BaseModel):
    """Kept beside a part. ``givers`` are the places that its bytes came from; ``flushed`` bytes are on the disk."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    url: str
    validator: str | None = None  # a strong entity tag or a date, for If-Range
    total: int | None = None
    givers: list[str] = []
    flushed: int = 0
    boot_id: str = ""


class Step(Enum):
    APPEND = "append"  # the body continues the part
    RESTART = "restart"  # the body is the whole file
    REPEAT = "repeat"  # the part is useless; ask again from the start
    COMPLETE = "complete"  # the part is whole already
    DENIED = "denied"
    MISSING = "missing"
    BUSY = "busy"  # try again later
    WRONG = "wrong"  # this place has something else, or answers nonsense


@dataclass(frozen=True)
class Verdict:
    step: Step
    total: int | None = None
    reason: str = ""


def trusted_length(length: int, state: PartState | None, boot_id: str) -> int:
    """How many of the part's bytes may be built on."""
    if state is None:
        return 0
    return length if state.boot_id == boot_id else min(length, state.flushed)


def request_headers(offset: int, state: PartState | None, url: str, *, promised: bool) -> dict[str, str] | None:
    """The headers that ask for the rest; None when the part cannot be continued from this URL."""
    if offset == 0:
        return {}
    same = state is not None and state.url == url and state.validator is not None
    if same:
        assert state is not None
        return {"Range": f"bytes={offset}-", "If-Range": state.validator or ""}
    return {"Range": f"bytes={offset}-"} if promised else None


def validator(headers: Mapping[str, str]) -> str | None:
    """What identifies this version of the file: a strong entity tag, else the date of change. Header names in lower case."""
    tag = headers.get("etag", "").strip()
    if tag.startswith('"') and len(tag) > 2:
        return tag
    return headers.get("last-modified", "").strip() or None


def judge(status: int, headers: Mapping[str, str], length: int | None, offset: int, expected: int | None) -> Verdict:
    """What to do with an answer to a request for the bytes from ``offset`` on; ``expected`` is the promised size."""
    if status in (401, 403):
        return Verdict(Step.DENIED)
    if status in (404, 410):
        return Verdict(Step.MISSING)
    if status in (408, 425, 429) or status >= 500:
        return Verdict(Step.BUSY, reason=f"answers {status}")
    if headers.get("content-encoding", "identity").lower() not in ("", "identity"):
        return Verdict(Step.WRONG, reason=f"sends the file encoded as {headers['content-encoding']}")
    if status == 200:
        return _sized(Step.RESTART, length, expected)
    if status not in (206, 416):
        return Verdict(Step.WRONG, reason=f"answers {status}")
    match = _CONTENT_RANGE.fullmatch(headers.get("content-range", "").strip())
    total = int(match[3]) if match and match[3] != "*" else None
    if status == 416:
        if offset and total is not None and total == offset and expected in (None, total):
            return Verdict(Step.COMPLETE, total)
        return Verdict(Step.REPEAT if offset else Step.WRONG, reason="says that there is no such range")
    if match is None or match[1] is None or int(match[1]) != offset:
        return Verdict(Step.REPEAT if offset else Step.WRONG, reason="sends another range than asked for")
    if total is None:
        total = int(match[2]) + 1
    return _sized(Step.APPEND, total, expected)


def _sized(step: Step, total: int | None, expected: int | None) -> Verdict:
    if expected is not None and total is not None and total != expected:
        return Verdict(Step.WRONG, reason=f"has {total} bytes where {expected} belong")
    return Verdict(step, total if total is not None else expected)
