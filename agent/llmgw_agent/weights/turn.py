"""One content that this node fetches while others may fetch it too: looks at the line, asks, waits, and gives up waiting."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final

from llmgw_base.clock import Clock

from .errors import DigestMismatchError, SourceNotFoundError, SourceUnavailableError, WeightsError
from .line import Member, ahead, givers, pause_between_looks, to_ask
from .peers import Peer, Sharing

#: Seconds between two looks at a line.
LOOK_EVERY: Final = 1.0
#: Nobody waits longer than this for others altogether, however well they get on.
LONGEST: Final = 6 * 3600.0
_BUSY: Final = 2.0
_LACKS: Final = 60.0
_UNREACHABLE: Final = 30.0
_WRONG: Final = 600.0
_ANY: Final = ""
logger = logging.getLogger(__name__)


class Avoided:
    """Nodes that are not asked for a while, because they did not answer or gave wrong bytes; known to all fetches of a node."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until: dict[str, float] = {}

    def add(self, node: str, seconds: float) -> None:
        self._until[node] = max(self._until.get(node, 0.0), self._clock.monotonic() + seconds)

    def now(self) -> set[str]:
        now = self._clock.monotonic()
        self._until = {node: until for node, until in self._until.items() if until > now}
        return set(self._until)


class FleetTurn:
    """See :class:`.peers.Turn`. Any number of files may ask at the same time."""

    def __init__(
        self,
        content: str,
        node: str,
        *,
        clock: Clock,
        look: Callable[[], Awaitable[list[Member] | None]],
        ask: Callable[[Member], Awaitable[Sharing | None]],
        peer: Callable[[Member], Peer],
        done: Callable[[], int],
        avoided: Avoided,
        patience: float,
    ) -> None:
        """
        Args:
            look: reads the line; None when the store does not answer.
            ask: how far a node is that fetches; None when it does not fetch any more. Raises SourceUnavailableError, and
                TimeoutError when it is only slow.
            patience: seconds that a node may fetch without getting on before nobody waits for it.
        """
        self._content, self._node, self._clock = content, node, clock
        self._look, self._ask, self._peer, self._done = look, ask, peer, done
        self._avoided, self._patience = avoided, patience
        self._line: list[Member] = []
        self._having: dict[str, frozenset[str]] = {}
        self._aside: dict[tuple[str, str], float] = {}
        self._lots: dict[str, float] = {}
        self._looking = asyncio.Lock()
        self._next_look = self._began = self._gained = clock.monotonic()
        self._head, self._head_gained = "", self._began
        self._stuck: set[str] = set()
        self._work: dict[str, int] = {}
        self._own = 0
        self.waits_for = ""

    async def peers(self, digest: str) -> Sequence[Peer]:
        while True:
            await self._look_again()
            avoided = self._avoided.now() | self._set_aside(digest) | self._set_aside(_ANY)
            found = givers(self._line, self._node, digest, self._having, avoided, self._lots)
            self.waits_for = "" if found else self._worth_waiting_for(digest)
            if found or not self.waits_for:
                return [self._peer(each) for each in found]
            await self._clock.sleep(LOOK_EVERY * (0.75 + self._lot() / 2))

    def left(self, peer: Peer, digest: str, error: WeightsError) -> None:
        now = self._clock.monotonic()
        if isinstance(error, DigestMismatchError):
            logger.warning(
                "a peer gave wrong bytes and is not asked for a while",
                extra={"fields": {"peer": peer.node, "url": peer.base_url, "cause": str(error)}},
            )
            self._avoided.add(peer.node, _WRONG)
        elif isinstance(error, SourceNotFoundError):
            self._aside[peer.node, digest] = now + _LACKS
        elif isinstance(error, SourceUnavailableError) and error.retry_after is not None:
            self._aside[peer.node, _ANY] = now + min(error.retry_after, _BUSY)
        else:
            logger.info("a peer is left", extra={"fields": {"peer": peer.node, "url": peer.base_url, "cause": str(error)}})
            self._avoided.add(peer.node, _UNREACHABLE)

    # -- looking

    async def _look_again(self) -> None:
        async with self._looking:
            if self._clock.monotonic() < self._next_look:
                return
            line = await self._look()
            before = {each.node for each in self._line if each.here}
            # While the store is silent the line is as it was: those in it tell by themselves how they get on.
            self._line = line if line is not None else self._line
            # Others each time: who is asked the same things by all would be busy with answering.
            self._lots = {each.node: self._lot() for each in self._line}
            own, self._own = self._own, max(self._own, self._done())
            if self._own > own or {each.node for each in self._line if each.here} - before:
                self._gained = self._clock.monotonic()
            asked = to_ask(self._line, self._node, self._avoided.now() | self._stuck, self._lots)
            await asyncio.gather(*(self._ask_one(each) for each in asked))
            self._judge_head()
            self._next_look = self._clock.monotonic() + pause_between_looks(len(self._line), LOOK_EVERY)

    async def _ask_one(self, member: Member) -> None:
        try:
            sharing = await self._ask(member)
        except SourceUnavailableError as error:
            logger.info("a peer that fetches is gone", extra={"fields": {"peer": member.node, "cause": str(error)}})
            self._avoided.add(member.node, _UNREACHABLE)
            return
        except TimeoutError:
            return  # busy; that it does not get on for long is noticed
        if sharing is None:
            # It is done, and the store does not say so yet; if it has failed, it is not asked twice for what it has not.
            self._line = [replace(each, here=True) if each.node == member.node else each for each in self._line]
            return
        self._having[member.node] = frozenset(sharing.digests)
        if sharing.work > self._work.get(member.node, 0):
            self._work[member.node] = sharing.work
            self._gained = self._clock.monotonic()
            if member.node == self._head:
                self._head_gained = self._gained

    def _judge_head(self) -> None:
        """Only of the first of the line it is expected that it gets on; the others may wait for it."""
        now = self._clock.monotonic()
        before = ahead(self._line, self._node, self._avoided.now() | self._stuck)
        head = before[0].node if before else ""
        if head != self._head:
            self._head, self._head_gained = head, now
        elif head and now - self._head_gained > self._patience:
            fields = {"peer": head, "content": self._content, "bytes": self._work.get(head, 0)}
            logger.warning("a peer that fetches gets no further; it is not waited for", extra={"fields": fields})
            self._stuck.add(head)

    # -- waiting

    def _worth_waiting_for(self, digest: str) -> str:
        """A node from which the file will probably come soon; empty when there is none."""
        now = self._clock.monotonic()
        if now - self._began > LONGEST:
            return ""
        if before := ahead(self._line, self._node, self._avoided.now() | self._stuck):
            return before[0].node
        busy = self._set_aside(_ANY) - self._set_aside(digest) - self._avoided.now()
        if now - self._gained > self._patience:
            return ""
        return next((each.node for each in self._line if each.here and each.node in busy), "")

    def _set_aside(self, digest: str) -> set[str]:
        now = self._clock.monotonic()
        self._aside = {key: until for key, until in self._aside.items() if until > now}
        return {node for node, what in self._aside if what == digest}

    @staticmethod
    def _lot() -> float:
        return random.random()  # noqa: S311  # to spread the load, not a secret
