"""What the other members say, followed key by key. While etcd is away, what was known last stays."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

from llmgw_agent.shard.gang.decide import Peer
from llmgw_base.clock import Clock
from llmgw_base.etcd.api import Deleted, Frozen, Put, Stale, Store, Synced
from llmgw_base.etcd.errors import StoreError
from llmgw_proto import keyspace
from llmgw_proto.records import BadRecordError, ShardRecord

Objection = Callable[[], Awaitable[str | None]]
DOUBT_PAUSE, FAULT_PAUSE = 1.0, 10.0
logger = logging.getLogger(__name__)


class Peers:
    """``nodes``: those to follow, by rank."""

    def __init__(self, store: Store, clock: Clock, objection: Objection, replica: str, nodes: Mapping[int, str]) -> None:
        self._store, self._clock, self._objection, self._replica = store, clock, objection, replica
        self._peers = {rank: Peer(rank, node, None, known=False) for rank, node in nodes.items()}
        self._news = asyncio.Event()

    @property
    def all(self) -> tuple[Peer, ...]:
        return tuple(self._peers.values())

    @property
    def known(self) -> bool:
        """Whether etcd was heard about every one of them at least once."""
        return all(peer.known for peer in self._peers.values())

    def __getitem__(self, rank: int) -> Peer:
        return self._peers[rank]

    async def news(self, limit: float | None = None) -> None:
        """Returns at the next change from now on, or after ``limit`` seconds."""
        # Each change has an event of its own, so that of several who wait none misses it.
        news = self._news
        if limit is None:
            await news.wait()
            return
        waits = {asyncio.create_task(news.wait()), asyncio.create_task(self._clock.sleep(max(0.0, limit)))}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Follows them for as long as the block lasts."""
        tasks = [asyncio.create_task(self._keep_following(rank), name=f"{self._replica}.{rank}") for rank in self._peers]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep_following(self, rank: int) -> None:
        while True:
            try:
                return await self._follow(rank)
            except Exception:
                logger.exception("fault in following %s.%d; it is followed again in %g s", self._replica, rank, FAULT_PAUSE)
                await self._clock.sleep(FAULT_PAUSE)

    async def _follow(self, rank: int) -> None:
        # From here on the watch itself sees when the store becomes another one.
        while not await self._believable():
            await self._clock.sleep(DOUBT_PAUSE)
        node = self._peers[rank].node
        key = keyspace.shard(node, f"{self._replica}.{rank}")
        found: ShardRecord | None = None
        trusted, readable = False, True
        async with contextlib.aclosing(self._store.watch(key)) as changes:
            async for change in changes:
                match change:
                    # The prefix of R.1 is that of R.10 too.
                    case Put() if change.key == key:
                        try:
                            found, readable = ShardRecord.decode(change.value, key), True
                        except BadRecordError as error:
                            readable = False
                            logger.warning(
                                "record not understood, keeping what was known", extra={"fields": {"cause": str(error)}}
                            )
                    case Deleted() if change.key == key:
                        found, readable = None, True
                    case Synced():
                        trusted = True
                    case Stale() | Frozen():
                        trusted = False
                    case _:
                        continue
                if trusted:
                    # Once known, always known: what the store said last holds while it is away.
                    self._peers[rank] = Peer(rank, node, found, known=found is not None or readable)
                    news, self._news = self._news, asyncio.Event()
                    news.set()

    async def _believable(self) -> bool:
        try:
            return await self._objection() is None
        except StoreError:
            return False
