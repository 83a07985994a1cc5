"""The loop behind every watch: list, follow, list again after any break, and never read an odd answer as "delete all".

::

             list trusted                       stream broken or silent
    START ────────────────▶ FOLLOWING ─────────────────────────────────▶ STALE ──▶ list trusted ──▶ FOLLOWING
      │ list fails             │  compacted, or time for a full list: list again, nothing said
      └──▶ STALE               │
                               └─ list or batch in doubt ──▶ FROZEN ──▶ list trusted *and* same history ──▶ FOLLOWING

Where the answers come from is behind :class:`Source`, so that the twin for tests runs this very loop.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from llmgw_base.clock import Clock
from llmgw_base.etcd import backoff
from llmgw_base.etcd.api import Change, Frozen, Snapshot, Stale, Synced
from llmgw_base.etcd.errors import CompactedError, StoreError
from llmgw_base.etcd.identity import Record, doubt, doubt_record, same_history
from llmgw_base.etcd.mirror import Event, Mirror

#: Seconds between full lists of a healthy watch; they correct what no event told.
FULL_LIST_EVERY = 300.0
#: The longest pause between tries: short, because the watch must be right within 2 s after the store is back.
RETRY_CAP = 0.5
FROZEN_RETRY_CAP = 2.0
#: A stream that held this long was a good one: the next try after it comes at once.
STEADY = 5.0

logger = logging.getLogger(__name__)


class Stream(Protocol):
    async def next(self, until: float) -> Sequence[Event] | None:
        """The next batch, whole revisions, in order; None when the clock has reached ``until`` (monotonic) without one.

        Raises:
            CompactedError: the revision asked for is no longer kept.
            StoreError: the stream broke, or is silent although it was asked for a sign of life.
        """
        ...


class Source(Protocol):
    @property
    def closed(self) -> bool: ...

    async def snapshot(self, prefix: str, revision: int = 0) -> Snapshot:
        """At ``revision`` if given (CompactedError if it is no longer kept), else the newest, linearizable."""
        ...

    async def record(self) -> Record: ...

    def follow(self, prefix: str, after: Snapshot) -> AbstractAsyncContextManager[Stream]: ...

    async def pause(self, seconds: float) -> None:
        """Sleeps; may return early when it is known that something changed."""
        ...


class Watcher:
    """One watch of one prefix."""

    def __init__(self, source: Source, prefix: str, clock: Clock) -> None:
        self._source = source
        self._prefix = prefix
        self._clock = clock
        self._mirror = Mirror()
        self._record = Record()
        self._condition: type[Stale | Frozen] | None = None
        self._attempt = 0

    async def changes(self) -> AsyncGenerator[Change, None]:
        """See :meth:`llmgw_base.etcd.api.Store.watch`. Ends only when the store was closed."""
        while not self._source.closed:
            try:
                snapshot, reason = await self._list()
            except StoreError as error:
                for stale in self._stale(error):
                    yield stale
                await self._pause(RETRY_CAP)
                continue
            if reason is not None:
                for frozen in self._freeze(reason):
                    yield frozen
                await self._pause(FROZEN_RETRY_CAP)
                continue
            for change in self._mirror.take_list(snapshot):
                yield change
            self._condition = None
            yield Synced(snapshot.revision)
            since = self._clock.monotonic()
            try:
                async with self._source.follow(self._prefix, snapshot) as stream:
                    while (batch := await stream.next(since + FULL_LIST_EVERY)) is not None:
                        if (reason := await self._doubt_batch(batch)) is not None:
                            for frozen in self._freeze(reason):
                                yield frozen
                            break
                        for change in self._mirror.take_events(batch):
                            yield change
            except CompactedError:
                logger.info("watch of %s: revision compacted; listing again", self._prefix)
            except StoreError as error:
                for stale in self._stale(error):
                    yield stale
            if self._clock.monotonic() - since >= STEADY:
                self._attempt = 0
            await self._pause(RETRY_CAP)

    async def _list(self) -> tuple[Snapshot, str | None]:
        """A fresh list, and the reason not to trust it."""
        snapshot = await self._source.snapshot(self._prefix)
        seen = await self._source.record()
        reason = doubt(self._mirror, self._record, snapshot, seen)
        if reason is None and self._condition is Frozen:
            reason = await self._unproven()
        if reason is None:
            self._record = self._record.learn(seen)
        return snapshot, reason

    async def _unproven(self) -> str | None:
        """A store that was doubted is trusted again only if it still shows what it showed at the revision known."""
        revision = self._mirror.revision
        try:
            then = await self._source.snapshot(self._prefix, revision)
        except CompactedError:
            return (
                f"revision {revision}, the last one known, was compacted, so nothing proves that this is the store of "
                "before; restart this program to accept the store as it is"
            )
        if not same_history(self._mirror, then):
            return f"at revision {revision} the store had other content than was seen: it is not the store of before"
        return None

    async def _doubt_batch(self, batch: Sequence[Event]) -> str | None:
        if not self._record.create_revision or not self._mirror.emptied_by(batch):
            return None
        return doubt_record(self._record, await self._source.record(), emptied=True)

    def _stale(self, error: StoreError) -> list[Change]:
        if self._condition is not None or self._source.closed:
            return []
        self._condition = Stale
        logger.warning("watch of %s is stale: %s", self._prefix, error)
        return [Stale(str(error))]

    def _freeze(self, reason: str) -> list[Change]:
        if self._condition is Frozen:
            return []
        self._condition = Frozen
        self._attempt = 0
        logger.error("watch of %s is frozen: %s", self._prefix, reason)
        return [Frozen(reason)]

    async def _pause(self, cap: float) -> None:
        pause = backoff.delay(self._attempt, cap)
        self._attempt += 1
        await self._source.pause(pause)
