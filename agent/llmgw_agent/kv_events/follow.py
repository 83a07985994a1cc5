"""Makes one gapless stream of what an engine publishes: gaps are replayed, restarts noticed, repetitions dropped.

Sequence numbers begin at 0 in each engine process. A number that was delivered already, with another content, is a restart. A
greater one may be a restart too, when the new process has already published more than was seen of the old one: therefore a
replay begins with the last batch that is known, and if that is not what it was, the process is another one. What numbers cannot
show, when the new process's happen to fit exactly, is found by asking after each broken connection (:meth:`Follower.catch_up`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from .decode import decode_batch
from .errors import KvEventError
from .events import Delivery, Lost, Restarted, Undecodable
from .wire import Message


class ReplayIncompleteError(Exception):
    """The replay ended early or did not begin. What came of it counts."""


#: Gives the batches from a number on that the engine still has, in order. Raises ReplayIncompleteError.
Replay = Callable[[int], AsyncGenerator[Message, None]]


class Follower:
    def __init__(self, deliver: Callable[[Delivery], None], replay: Replay | None) -> None:
        self._deliver = deliver
        self._replay = replay
        self._last: Message | None = None  # delivered
        self._replayed: dict[int, int] = {}  # hashes of what came by replay and may still come live, by number

    @property
    def next_seq(self) -> int:
        return 0 if self._last is None else self._last.seq + 1

    async def published(self, message: Message) -> None:
        """A live message."""
        if message.seq < self.next_seq:
            if self._replayed.pop(message.seq, None) == hash(message.payload):
                return
            self._restarted()
        if message.seq > self.next_seq:
            await self.catch_up()
        # The replay may have brought it, or shown that numbers up to here are a new process's.
        if message.seq >= self.next_seq:
            self._replayed.clear()  # live messages come in order
            self._take(message)
        else:
            self._replayed.pop(message.seq, None)

    async def catch_up(self) -> None:
        """Asks for what is missing, and whether the engine is still the same: at start, at gaps, after a broken connection."""
        if self._replay is None:
            return
        try:
            if not await self._went_through(self._replay):
                self._restarted()
                await self._went_through(self._replay)
        except ReplayIncompleteError:
            return  # the next message shows what is missing still

    async def _went_through(self, replay: Replay) -> bool:
        """False when the engine turns out to be another process than before."""
        known = self._last
        confirmed = False
        async with aclosing(replay(known.seq if known is not None else 0)) as messages:
            async for message in messages:
                if known is not None and message.seq == known.seq and not confirmed:
                    if message.payload != known.payload:
                        return False
                    confirmed = True
                elif message.seq >= self.next_seq:
                    confirmed = True  # the known one has left the engine's ring: many batches, so no restart is likely
                    self._replayed[message.seq] = hash(message.payload)
                    self._take(message)
        return confirmed or known is None

    def _take(self, message: Message) -> None:
        if message.seq > self.next_seq:
            self._deliver(Lost(self.next_seq, message.seq - 1))
        self._last = message
        try:
            self._deliver(decode_batch(message.seq, message.payload))
        except KvEventError as error:
            self._deliver(Undecodable(message.seq, message.payload, str(error)))

    def _restarted(self) -> None:
        self._last = None
        self._replayed.clear()
        self._deliver(Restarted())
