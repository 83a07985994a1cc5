"""One caller's stream of a shard's KV-cache events, over every engine process that the shard has meanwhile.

Each caller has a subscriber of its own, for as long as he listens: nothing is read for nobody, nothing has to be kept for those
who come later (the engine's own ring of batches, replayed at the beginning, is as long as any that could be kept here), and one
who is slow costs only himself. What he has not taken yet is bounded; what does not fit is dropped from the oldest on, and said.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from llmgw_agent.kv_events.events import Batch, Delivery, Lost, Restarted, Undecodable
from llmgw_base.clock import Clock

#: What waits for a caller, in bytes of payloads and in batches.
MOST_BYTES = 64 << 20
MOST_BATCHES = 20_000
#: How often it is looked whether the shard has another engine process.
LOOK_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Source:
    """Where an attempt publishes."""

    attempt: str
    endpoint: str
    replay: str | None
    topic: str


@dataclass(frozen=True, slots=True)
class Begun:
    """An engine process whose events follow: what was known of another one's cache is void. ``number`` counts them."""

    source: Source
    number: int


@dataclass(frozen=True, slots=True)
class Raw:
    """A batch as it was sent."""

    seq: int
    topic: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class Missing:
    """Batches that cannot be had; ``slow``: because the caller did not take them."""

    first: int
    last: int
    slow: bool = False


Item: TypeAlias = Begun | Raw | Missing


@dataclass(slots=True)
class Buffer:
    """What waits for the caller, bounded."""

    most_bytes: int = MOST_BYTES
    most_batches: int = MOST_BATCHES
    _items: deque[Item] = field(default_factory=deque)
    _bytes: int = 0
    _batches: int = 0
    _filled: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, item: Item) -> None:
        if isinstance(item, Begun):
            # Nobody needs what is void.
            self._items.clear()
            self._bytes = self._batches = 0
        self._items.append(item)
        if isinstance(item, Raw):
            self._bytes += len(item.payload)
            self._batches += 1
        self._shorten()
        self._filled.set()

    async def take(self) -> Item:
        while not self._items:
            self._filled.clear()
            await self._filled.wait()
        item = self._items.popleft()
        if isinstance(item, Raw):
            self._bytes -= len(item.payload)
            self._batches -= 1
        return item

    def _shorten(self) -> None:
        """Drops the oldest batches, and leaves in their place what is missing."""
        if self._bytes <= self.most_bytes and self._batches <= self.most_batches:
            return
        head = [self._items.popleft()] if isinstance(self._items[0], Begun) else []
        first: int | None = None
        last = 0
        # Down to half, so that a caller who stays slow is told of few large gaps and not of many small ones.
        while self._items and (self._bytes > self.most_bytes // 2 or self._batches > self.most_batches // 2):
            item = self._items.popleft()
            if isinstance(item, Raw):
                self._bytes -= len(item.payload)
                self._batches -= 1
                first, last = item.seq if first is None else first, item.seq
            elif isinstance(item, Missing):
                first, last = item.first if first is None else first, item.last
        if first is not None:
            self._items.appendleft(Missing(first, last, slow=True))
        self._items.extendleft(head)


class Reader(Protocol):
    """A :class:`~llmgw_agent.kv_events.Subscriber`."""

    async def run(self, deliver: Callable[[Delivery], None]) -> None: ...


async def feed(
    current: Callable[[], Source | None], subscribe: Callable[[Source], Reader], clock: Clock, buffer: Buffer | None = None
) -> AsyncGenerator[Item, None]:
    """Items as they come, for ever.

    Args:
        current: the engine process that the shard has now; None while it has none. Raises what is to end the stream.
        buffer: tests have a smaller one.
    """
    buffer = buffer or Buffer()
    follower = asyncio.create_task(_follow(current, subscribe, clock, buffer))
    try:
        while True:
            taking = asyncio.ensure_future(buffer.take())
            try:
                await asyncio.wait({taking, follower}, return_when=asyncio.FIRST_COMPLETED)
                if not taking.done():
                    follower.result()
                yield await taking
            finally:
                taking.cancel()
    finally:
        follower.cancel()
        await asyncio.gather(follower, return_exceptions=True)


async def _follow(
    current: Callable[[], Source | None], subscribe: Callable[[Source], Reader], clock: Clock, buffer: Buffer
) -> None:
    reading: asyncio.Task[None] | None = None
    writer: _Writer | None = None
    source: Source | None = None
    try:
        while True:
            now = current()
            if now != source:
                if reading is not None:
                    reading.cancel()
                    await asyncio.gather(reading, return_exceptions=True)
                    reading = None
                source = now
                if now is not None:
                    writer = _Writer(buffer, now, writer.number if writer is not None else 0)
                    writer.begin()
                    reading = asyncio.create_task(subscribe(now).run(writer.deliver))
            if reading is not None and reading.done():
                reading.result()
            await clock.sleep(LOOK_SECONDS)
    finally:
        if reading is not None:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


@dataclass(slots=True)
class _Writer:
    buffer: Buffer
    source: Source
    number: int

    def begin(self) -> None:
        self.number += 1
        self.buffer.put(Begun(self.source, self.number))

    def deliver(self, what: Delivery) -> None:
        match what:
            case Batch(seq=seq, payload=payload) | Undecodable(seq=seq, payload=payload):
                self.buffer.put(Raw(seq, self.source.topic, payload))
            case Lost(first=first, last=last):
                self.buffer.put(Missing(first, last))
            case Restarted():
                self.begin()
