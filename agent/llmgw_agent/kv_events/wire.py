"""The frames around batches: published messages, requests for a replay, and both forms of its replies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from .errors import KvEventError

_END: Final = (1 << 64) - 1  # -1, signed


class Message(NamedTuple):
    seq: int
    payload: bytes


def read_published(frames: Sequence[bytes]) -> Message:
    """``[topic, seq, payload]``. Raises KvEventError."""
    if len(frames) != 3:
        raise KvEventError(f"a published message has {len(frames)} frames instead of 3")
    return Message(_seq(frames[1]), frames[2])


def replay_request(start: int) -> list[bytes]:
    """What a DEALER sends to get all batches from ``start`` on."""
    return [b"", start.to_bytes(8, "big")]


def read_reply(frames: Sequence[bytes]) -> Message | None:
    """A reply as a DEALER gets it, None at the end: ``["", seq, payload]``, or with a topic before seq. Raises KvEventError."""
    if not 2 <= len(frames) <= 4:
        raise KvEventError(f"a reply has {len(frames)} frames instead of 3 or 4")
    seq = _seq(frames[-2])
    return None if seq == _END else Message(seq, frames[-1])


def _seq(frame: bytes) -> int:
    if len(frame) != 8:
        raise KvEventError(f"a sequence number has {len(frame)} bytes instead of 8")
    return int.from_bytes(frame, "big")
