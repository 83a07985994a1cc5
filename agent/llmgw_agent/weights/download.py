"""Gets one file from whoever has it: peers, the mirror, the origin, in this order, with retries and resumption."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Final

from llmgw_base.clock import Clock

from .client import Client, Target
from .errors import DigestMismatchError, NoSpaceError, SourceUnavailableError, WeightsError
from .layout import Layout
from .metrics import Traffic
from .receive import Attempt, Fetched, FileWish, Meter
from .settings import WeightsSettings

logger = logging.getLogger(__name__)

_PEER_ATTEMPTS: Final = 2
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 30.0


@dataclass(frozen=True)
class Place:
    """Where a file may be had. ``optional``: a peer or mirror, left at the first trouble. ``left`` is told why it was left.

    ``hurried``: when it is busy there are others to ask. ``kind``: peer, mirror or source.
    """

    target: Target
    optional: bool
    left: Callable[[WeightsError], None] = lambda _error: None
    hurried: bool = False
    kind: str = "source"


def pause(tries: int, retry_after: float | None, jitter: float) -> float:
    """Seconds until the next try; ``jitter`` between 0 and 1 keeps a fleet from coming back all at once."""
    if retry_after is not None:
        return min(retry_after, 10 * _LONGEST_PAUSE) + jitter
    return float(min(_FIRST_PAUSE * 2.0 ** (tries - 1), _LONGEST_PAUSE)) * (0.5 + jitter / 2)


class Downloader:
    def __init__(
        self,
        client: Client,
        layout: Layout,
        settings: WeightsSettings,
        clock: Clock,
        executor: Executor,
        boot_id: str,
        traffic: Traffic,
    ) -> None:
        self._client = client
        self._layout = layout
        self._settings = settings
        self._clock = clock
        self._executor = executor
        self._boot_id = boot_id
        self._traffic = traffic

    async def fetch(self, wish: FileWish, places: Sequence[Place], meter: Meter) -> Fetched:
        """The part of ``wish`` is whole and verified when this returns. Raises what the last place asked came to."""
        problem: WeightsError = SourceUnavailableError(f"{wish.path}: there is nowhere to fetch it from")
        for place in places:
            try:
                return await self._persist(wish, place, meter)
            except (DigestMismatchError, SourceUnavailableError) as error:
                problem = error
            except WeightsError as error:
                if not place.optional or isinstance(error, NoSpaceError):  # another place would not make room
                    raise
                problem = error
            place.left(problem)
            logger.info("place left", extra={"fields": {"file": wish.path, "place": str(place.target), "reason": str(problem)}})
        raise problem

    async def _persist(self, wish: FileWish, place: Place, meter: Meter) -> Fetched:
        """One place, as often as it is worth it: a try that got further than any before does not count."""
        tries = best = 0
        limit = min(_PEER_ATTEMPTS, self._settings.attempts) if place.optional else self._settings.attempts
        blamed_others = False
        while True:
            try:
                return await self._once(wish, place, meter)
            except DigestMismatchError as error:
                if not error.mixed or blamed_others:
                    raise
                blamed_others = True
            except SourceUnavailableError as error:
                tries = 1 if meter.on_disk > best else tries + 1
                best = max(best, meter.on_disk)
                if tries >= limit or (place.hurried and error.retry_after is not None):
                    raise
                await self._clock.sleep(pause(tries, error.retry_after, random.random()))  # noqa: S311  # jitter, not a secret

    async def _once(self, wish: FileWish, place: Place, meter: Meter) -> Fetched:
        attempt = Attempt(
            wish,
            place.target,
            meter,
            client=self._client,
            layout=self._layout,
            settings=self._settings,
            clock=self._clock,
            boot_id=self._boot_id,
        )
        before = meter.fetched
        future = asyncio.get_running_loop().run_in_executor(self._executor, attempt.run)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            attempt.abort()
            await asyncio.wait({future})
            if not future.cancelled():
                future.exception()  # what became of it no longer matters, but must not be reported as never looked at
            raise
        finally:
            self._traffic.fetched[place.kind] += meter.fetched - before
