"""Calls that find a member that answers, and repeat only what may be repeated."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from llmgw_base.clock import Clock
from llmgw_base.etcd import backoff
from llmgw_base.etcd.errors import OutcomeUnknownError, StoreAuthError, StoreUnavailableError
from llmgw_base.etcd.member import Member, UnreachableError
from llmgw_base.etcd.refusal import Reaction
from llmgw_base.etcd.tokens import Tokens
from llmgw_base.etcd.wire import CallFailedError, Link, Metadata, answer

R = TypeVar("R")

#: Seconds until a call is given up, and perhaps tried elsewhere.
CALL_TIMEOUT = 2.0
#: Seconds that a call goes on trying, if the one before it was answered: an election among the members takes about as long.
#: While the store is known to be away each call asks every member once and fails, so that callers can say so at once.
PATIENCE = 3.0
RETRY_CAP = 0.5
#: A fresh token may be unknown for a moment to a member that lags behind.
TOKEN_TRIES = 3
#: Calls under way at once; more wait for their turn before their time begins to run, so that a burst is slow and not lost.
IN_FLIGHT = 100

Send = Callable[[Link, Metadata], Awaitable[R]]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Answer(Generic[R]):
    value: R
    repeated: bool
    """An earlier try was sent and its answer lost, so it may have been done before."""


class Caller:
    """The members of one store. Stays with one as long as it answers."""

    def __init__(self, members: Sequence[Member], tokens: Tokens, clock: Clock) -> None:
        self._members = list(members)
        self._tokens = tokens
        self._clock = clock
        self._current = 0
        self._answered_last = True
        self._turns = asyncio.Semaphore(IN_FLIGHT)
        self.closed = False

    async def call(self, what: str, send: Send[R], *, once: bool = False, urgent: bool = False) -> Answer[R]:
        """
        Args:
            what: for messages, such as "put /a/b".
            send: makes the call on a link; awaited with a timeout of its own.
            once: never sent again if it may have been done.
            urgent: does not wait for its turn.

        Raises:
            OutcomeUnknownError: ``once``, and the answer was lost.
            StoreUnavailableError: no member answered.
            StoreRefusedError, LeaseLostError, CompactedError, StoreUnsuitableError: an answer.
        """
        patient_until = self._clock.monotonic() + (PATIENCE if self._answered_last else 0.0)
        failures: dict[str, str] = {}
        lost = False
        token_tries = 0
        for tries in itertools.count(1):
            if self.closed:
                raise StoreUnavailableError(f"etcd: {what}: the store was closed by this program")
            member = self._members[self._current]
            try:
                value = await self._try(member, send, urgent)
            except UnreachableError as failure:
                failures[member.endpoint] = str(failure)
            except CallFailedError as failure:
                verdict = failure.verdict
                text = f"etcd at {member.endpoint}: {what}: {failure.text}" + (verdict.remedy and f"; {verdict.remedy}")
                if verdict.reaction is Reaction.REFUSED:
                    self._answered_last = True
                    raise verdict.error(text) from None
                if verdict.reaction is Reaction.AUTHENTICATE:
                    token_tries += 1
                    if self._tokens.user is None or token_tries >= TOKEN_TRIES:
                        raise StoreAuthError(text) from None
                    await self._clock.sleep(backoff.delay(token_tries - 1, RETRY_CAP))
                    continue
                if verdict.reaction is Reaction.UNKNOWN:
                    if once:
                        self._leave(member)
                        raise OutcomeUnknownError(f"{text}; it may have been done or not") from None
                    lost = True
                failures[member.endpoint] = failure.text
            else:
                self._answered_last = True
                return Answer(value, lost)
            self._leave(member)
            if tries >= len(self._members) and self._clock.monotonic() >= patient_until:
                self._answered_last = False
                raise StoreUnavailableError(_nobody(what, failures))
            if tries % len(self._members) == 0:
                await self._clock.sleep(backoff.delay(tries // len(self._members) - 1, RETRY_CAP))
        raise AssertionError("unreachable")

    async def broke(self, link: Link, failure: CallFailedError | None = None) -> None:
        """A stream on ``link`` ended, by ``failure`` or because what it said is of no use: try another member next. If
        not even etcd itself ended it, the connection is dead: away with it.
        """
        for member in self._members:
            if member.has(link):
                self._leave(member)
                if failure is not None and not failure.answered:
                    await member.drop(link)

    async def alive(self, link: Link) -> bool:
        """Whether the other end of ``link`` gives a sign of life when asked; if not, the link is dropped."""
        for member in self._members:
            if member.has(link):
                try:
                    await member.probe(link)
                except UnreachableError:
                    self._leave(member)
                    return False
                return True
        return False

    async def close(self) -> None:
        self.closed = True
        for member in self._members:
            await member.close()

    async def _try(self, member: Member, send: Send[R], urgent: bool) -> R:
        async with contextlib.nullcontext() if urgent else self._turns:
            link = await member.dial()
            return await self._send(member, link, send)

    async def _send(self, member: Member, link: Link, send: Send[R]) -> R:
        sent = self._clock.monotonic()
        token: str | None = None
        try:
            token = await self._tokens.get(link)
            # Without a quorum a member must refuse rather than answer from its own memory.
            metadata = [("hasleader", "true")] + ([("token", token)] if token else [])
            value = await answer(lambda: send(link, metadata))
        except CallFailedError as failure:
            if failure.answered:
                link.heard = self._clock.monotonic()
            elif link.heard <= sent:
                await member.drop(link)
            if failure.verdict.reaction is Reaction.AUTHENTICATE:
                self._tokens.forget(token)
            raise
        link.heard = self._clock.monotonic()
        return value

    def _leave(self, member: Member) -> None:
        if self._members[self._current] is member:
            self._current = (self._current + 1) % len(self._members)


def _nobody(what: str, failures: dict[str, str]) -> str:
    reasons = "; ".join(f"{endpoint}: {reason}" for endpoint, reason in failures.items())
    return f"etcd: {what}: no member answered ({reasons}); check that etcd runs and that etcd.endpoints names it"
