"""The weights of a wish: fetched before the engine starts, with progress that people can read."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from urllib.parse import urlsplit

from llmgw_agent.engines.base import Available
from llmgw_agent.errors import AttemptError, RejectedError
from llmgw_agent.shard.context import Context
from llmgw_agent.weights import Progress, SourceInvalidError, WeightsError, parse_source
from llmgw_agent.weights.early import Judge
from llmgw_agent.weights.sources import FileSource, Source, UrlSource, redacted
from llmgw_base.clock import Clock
from llmgw_proto.engines import check_args, check_env
from llmgw_proto.records import AssignmentRecord
from llmgw_proto.sources import KNOWN_SCHEMES

#: How often progress is told: each time is a write to etcd.
TOLD_EVERY = 2.0
_UNITS = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"))
logger = logging.getLogger(__name__)


async def fetch(
    context: Context, wish: AssignmentRecord, tell: Callable[[str], None], judge: Judge | None = None
) -> Available | None:
    """Makes the weights be here and pins them for the shard; ``tell`` hears how far that is. None if there are none to fetch.

    ``judge`` says of the header of a GGUF why the engine here cannot load it: then nothing more of it is fetched.

    Raises:
        RejectedError: there are no such weights, or they may not be fetched.
        AttemptError: not now.
    """
    source = to_fetch(wish)
    if source is None or wish.source is None:
        return None
    # Before gigabytes are fetched for what cannot run in any case.
    problem = check_args(wish.engine, wish.args) or check_env(wish.env)
    if problem is not None:
        raise RejectedError(problem)
    began, reporter = context.clock.monotonic(), Reporter(context.clock, tell)
    try:
        found = await context.weights.ensure(wish.source, progress=reporter.hear, pin=wish.shard, judge=judge)
    except WeightsError as error:
        if isinstance(source, FileSource):
            return None  # the engine's own check says what is wrong with it
        if error.recoverable:
            raise AttemptError(f"weights: {error}") from error
        raise RejectedError(f"weights: {error}") from error
    if reporter.fetched:
        fields = {
            "shard": wish.shard,
            # Signed links carry keys.
            "source": redacted(found.source) if isinstance(source, UrlSource) else found.source,
            "bytes": reporter.fetched,
            "seconds": round(context.clock.monotonic() - began, 1),
        }
        logger.info("weights fetched", extra={"fields": fields})
    if judge is not None and found.facts is not None and (problem := await asyncio.to_thread(judge, found.facts)):
        raise RejectedError(f"weights {found.path}: {problem}")
    return Available(found.path, found.facts)


async def release(context: Context, wish: AssignmentRecord) -> None:
    """The shard uses its weights no more: they may be removed when room is needed."""
    if wish.source is None or to_fetch(wish, strict=False) is None:
        return
    try:
        await context.weights.release(wish.source, wish.shard)
    except WeightsError as error:
        fields = {"shard": wish.shard, "cause": str(error)}
        # At the agent's next start all pins of shards that are gone go too.
        logger.warning("cannot note that weights are used no more", extra={"fields": fields})


def to_fetch(wish: AssignmentRecord, *, strict: bool = True) -> Source | None:
    """What the store is asked for. A ``command`` may have a source of a kind of its own, which only its program understands.

    Raises:
        RejectedError: with ``strict``, the source cannot be read.
    """
    if wish.source is None:
        return None
    try:
        return parse_source(wish.source)
    except SourceInvalidError as error:
        if not strict or (wish.engine == "command" and not wish.source.startswith(KNOWN_SCHEMES)):
            return None
        raise RejectedError(str(error)) from error


class Reporter:
    """Passes on what is worth telling: each new phase, and how far it is now and then."""

    def __init__(self, clock: Clock, tell: Callable[[str], None]) -> None:
        self._clock, self._tell = clock, tell
        self._phase = ""
        self._told_at = 0.0
        self._told_bytes = 0
        self.fetched = 0

    def hear(self, progress: Progress) -> None:
        self.fetched = progress.bytes_fetched
        if progress.phase == "ready":
            return
        now = self._clock.monotonic()
        new = progress.phase != self._phase
        if not new and now - self._told_at < TOLD_EVERY:
            return
        # Over the time between two reports, which is steadier than the last quarter of a second.
        gone = now - self._told_at
        rate = progress.rate if new or gone <= 0 else (progress.bytes_fetched - self._told_bytes) / gone
        self._phase, self._told_at, self._told_bytes = progress.phase, now, progress.bytes_fetched
        self._tell(describe(progress, rate))


def describe(progress: Progress, rate: float) -> str:
    """For people: ``fetching 1.2 of 4.7 GB, 85 MB/s, from huggingface.co``. ``rate`` in bytes per second."""
    match progress.phase:
        case _ if progress.waits_for:
            return f"waits for node {progress.waits_for}, which fetches the same weights"
        case "waiting" if progress.bytes_done:
            return f"another process fetches the same weights: {_amount(progress)}"
        case "waiting":
            return "waits for another process that uses the same weights"
        case "resolving":
            return "asks what the source consists of"
        case "verifying":
            return f"verifies the weights: {_amount(progress)}"
        case _:
            place = f", from {_host(progress.place)}" if progress.place else ""
            return f"fetching {_amount(progress)}, {size(rate)}/s{place}"


def _amount(progress: Progress) -> str:
    done, total = progress.bytes_done, progress.bytes_total
    if total is None:
        return size(done)
    unit, name = next((each for each in _UNITS if total >= each[0]), (1, "B"))
    return f"{_short(done / unit)} of {_short(total / unit)} {name}"


def size(count: float) -> str:
    """Bytes for people, in decimal units."""
    unit, name = next((each for each in _UNITS if count >= each[0]), (1, "B"))
    return f"{_short(count / unit)} {name}"


def _short(value: float) -> str:
    return f"{value:.1f}" if 0 < value < 10 and value != int(value) else f"{value:.0f}"


def _host(place: str) -> str:
    try:
        return urlsplit(place).hostname or place
    except ValueError:
        return place
