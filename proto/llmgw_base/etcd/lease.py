"""A lease that a task keeps alive, and that knows when it is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from llmgw_base.clock import Clock
from llmgw_base.etcd.errors import LeaseLostError, StoreError
from llmgw_base.etcd.timers import done_within, reap

#: Keep-alives per time to live.
RENEWALS = 3
#: Seconds until an unanswered keep-alive is tried again.
RETRY = 0.3

logger = logging.getLogger(__name__)


class KeptLease:
    """See :class:`llmgw_base.etcd.api.Lease`. Made by ``grant``; must be revoked, abandoned or lost before its store closes
    (closing the store abandons it).

    It is lost when the server says so, and also when no keep-alive was answered for ``ttl`` seconds, counted from when the
    last answered one was *sent*: then the server may let go of it at any moment, and nobody can know.
    """

    def __init__(
        self,
        lease_id: int,
        ttl: float,
        granted_at: float,
        *,
        clock: Clock,
        ask: Callable[[int], Awaitable[None]],
        revoke: Callable[[int], Awaitable[None]],
    ) -> None:
        """
        Args:
            granted_at: monotonic time when the grant was sent.
            ask: sends one keep-alive; raises LeaseLostError when the server does not know the lease (any more).
            revoke: revokes; may raise StoreError.
        """
        self._id = lease_id
        self._ttl = ttl
        self._clock = clock
        self._ask = ask
        self._revoke = revoke
        self._answered = granted_at
        self._failing = False
        self._fate: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._keeper: asyncio.Task[None] = asyncio.create_task(self._run(), name=f"lease {lease_id:x}")

    @property
    def id(self) -> int:
        return self._id

    @property
    def ttl(self) -> float:
        return self._ttl

    @property
    def lost(self) -> bool:
        return self._fate.done()

    @property
    def kept(self) -> bool:
        """Whether the task still runs."""
        return not self._keeper.done()

    async def wait_lost(self) -> str:
        return await asyncio.shield(self._fate)

    async def revoke(self) -> None:
        await self._end("it was revoked by this program")
        try:
            await self._revoke(self._id)
        except LeaseLostError:
            pass
        except StoreError as error:
            logger.warning("lease %x could not be revoked, it will expire within %g s: %s", self._id, self._ttl, error)

    async def abandon(self) -> None:
        await self._end("it was abandoned by this program")

    async def _end(self, reason: str) -> None:
        self._lose(reason)
        await reap(self._keeper)

    def _lose(self, reason: str) -> None:
        if not self._fate.done():
            self._fate.set_result(reason)

    @property
    def _left(self) -> float:
        return self._answered + self._ttl - self._clock.monotonic()

    async def _run(self) -> None:
        """The only task of this lease."""
        try:
            await self._keep()
        except Exception:
            logger.exception("the task that keeps lease %x alive failed; the lease counts as lost", self._id)
            self._lose("the task that kept it alive failed, see the log")

    async def _keep(self) -> None:
        """Renews until the lease is lost. A keep-alive under way never outlives the time that is left."""
        pause = self._ttl / RENEWALS
        while self._left > 0:
            await self._clock.sleep(min(pause, self._left))
            if self._left <= 0:
                break
            sent = self._clock.monotonic()
            asking = asyncio.ensure_future(self._renew())
            try:
                answered = await done_within(self._clock, asking, self._left) and asking.result()
            finally:
                await reap(asking)
            if self.lost:
                return
            if answered:
                self._answered = sent
            pause = self._ttl / RENEWALS if answered else min(RETRY, self._ttl / RENEWALS)
        self._lose(f"no keep-alive was answered for {self._ttl:g} s")

    async def _renew(self) -> bool:
        try:
            await self._ask(self._id)
        except LeaseLostError as error:
            self._lose(str(error))
            return False
        except StoreError as error:
            logger.log(
                logging.DEBUG if self._failing else logging.WARNING,
                "lease %x: keep-alive failed, %.1f s left: %s",
                self._id,
                self._left,
                error,
            )
            self._failing = True
            return False
        self._failing = False
        return True
