"""What somebody wants of a shard's logs, checked and read."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

from llmgw_agent.logs.files import FIRST_FAILURE, PINNED_BYTES, SUSPECT
from llmgw_agent.logs.grep import matching
from llmgw_agent.logs.tail import CHUNK, last_lines, tail
from llmgw_base.clock import Clock
from llmgw_proto.agent_pb2 import LogsRequest

ENGINE = "engine"
_KEPT = {"first-failure": FIRST_FAILURE, "suspect": SUSPECT}


class NothingKeptError(Exception):
    """There is no such file, since nothing has failed. Reaction: tell whoever asked."""


async def read_logs(folder: Path, wanted: LogsRequest, clock: Clock) -> AsyncGenerator[bytes, None]:
    """Whole lines, oldest first; with ``follow`` for ever.

    Raises:
        ValueError: the request makes no sense; a bad regular expression is a PatternError, which says what is wrong with it.
        NothingKeptError: nothing is kept of a failure.
    """
    file = wanted.file or ENGINE
    if file not in (ENGINE, *_KEPT):
        raise ValueError(f"there is no log {file!r}; use {', '.join((ENGINE, *_KEPT))}")
    if not math.isfinite(wanted.since) or wanted.since < 0:
        raise ValueError(f"since: {wanted.since} is no time in seconds since 1970")
    if file != ENGINE and (wanted.follow or wanted.since):
        raise ValueError(f"the log {file} was written at once: it can neither be followed nor read since a time")
    keep = matching(wanted.grep) if wanted.grep else None
    if file == ENGINE:
        chunks = tail(folder, wanted.tail, follow=wanted.follow, clock=clock, since=wanted.since, keep=keep)
        async with aclosing(chunks):
            async for chunk in chunks:
                yield chunk
        return
    try:
        data = await asyncio.to_thread(_read, folder / _KEPT[file])
    except OSError:
        raise NothingKeptError(f"no {file} is kept of this shard; it has not come to one since its log began") from None
    data = keep(data) if keep is not None else data
    data = last_lines(data, wanted.tail) if wanted.tail else data
    for start in range(0, len(data), CHUNK):
        yield data[start : start + CHUNK]


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(2 * PINNED_BYTES)
