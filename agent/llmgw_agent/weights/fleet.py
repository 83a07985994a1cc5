"""The agents of a cluster as sources of weights: says in etcd what is here, and finds out who else has what is wanted.

A node has one key for each content (:func:`llmgw_proto.keyspace.weights`): a model of 160 files is one key, and whoever wants
it reads one prefix while it fetches. Nobody watches anything, so a thousand agents cost etcd nothing while nothing is fetched.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Protocol

import aiohttp

from llmgw_base.clock import Clock
from llmgw_base.etcd.api import Store
from llmgw_base.etcd.errors import StoreError
from llmgw_base.secrets import weights_token
from llmgw_proto import keyspace
from llmgw_proto.records import BadRecordError, WeightsRecord

from .errors import SourceUnavailableError, WeightsError
from .line import Member
from .peers import Peer, Sharing, content_url
from .turn import Avoided, FleetTurn

#: A node tells of so many contents at most, those used last.
MOST_TOLD: Final = 100
#: Seconds for the own key to be in etcd before the line is looked at.
_REGISTER: Final = 3.0
_ANSWER: Final = 10.0
logger = logging.getLogger(__name__)


class Announcer(Protocol):
    """What this needs of the agent's publisher."""

    def put(self, key: str, value: bytes, *, leased: bool = False) -> None: ...

    def remove(self, key: str) -> None: ...

    async def settled(self, limit: float) -> bool: ...


@dataclass(frozen=True)
class Membership:
    """What is known once the agent is in a cluster. ``url``: where this node gives files; None when it gives none."""

    announcer: Announcer
    secret: str
    url: str | None


class Fleet:
    """A :class:`.peers.PeerSource`. Until :meth:`join` there is nobody to ask."""

    def __init__(
        self,
        node: str,
        etcd: Store,
        session: aiohttp.ClientSession,
        clock: Clock,
        *,
        patience: float,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """
        Args:
            tls: for calling other agents; None where they speak plain HTTP.
        """
        self._node, self._etcd, self._session, self._clock = node, etcd, session, clock
        self._patience, self._tls = patience, tls
        self._avoided = Avoided(clock)
        self._membership: Membership | None = None
        self._fetching: Counter[str] = Counter()
        self._settling: set[str] = set()
        self._here: list[str] = []
        self._told: set[str] = set()
        self._changed = asyncio.Event()
        self._changed.set()

    def join(self, membership: Membership) -> None:
        self._membership = membership
        self._changed.set()

    def changed(self) -> None:
        self._changed.set()

    async def run(self, contents: Callable[[], Awaitable[Sequence[str]]]) -> None:
        """Keeps etcd up to date with what is stored, for ever. ``contents`` lists it, what was used last first."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            settling = set(self._settling)
            try:
                self._here = list(await contents())[:MOST_TOLD]
            except WeightsError as error:
                logger.warning("cannot see which weights are here", extra={"fields": {"cause": str(error)}})
            self._settling -= settling
            self._tell()

    def _tell(self) -> None:
        membership = self._membership
        if membership is None or membership.url is None:
            return
        here, fetching = set(self._here), {*self._fetching, *self._settling}
        for content in here | fetching:
            state = "fetching" if content in fetching else "here"
            record = WeightsRecord.model_validate({"node": self._node, "url": membership.url, "state": state})
            membership.announcer.put(keyspace.weights(content, self._node), record.encode(), leased=True)
        for content in self._told - here - fetching:
            membership.announcer.remove(keyspace.weights(content, self._node))
        self._told = here | fetching

    @asynccontextmanager
    async def turn(self, content: str, done: Callable[[], int]) -> AsyncIterator[FleetTurn]:
        self._fetching[content] += 1
        self._tell()
        try:
            if self._membership is not None and self._membership.url is not None:
                await self._membership.announcer.settled(_REGISTER)
            yield FleetTurn(
                content,
                self._node,
                clock=self._clock,
                look=lambda: self._look(content),
                ask=lambda member: self._ask(member, content),
                peer=self._peer,
                done=done,
                avoided=self._avoided,
                patience=self._patience,
            )
        finally:
            self._fetching[content] -= 1
            if self._fetching[content] <= 0:
                del self._fetching[content]
                # Until the next look at the disk tells what became of it.
                self._settling.add(content)
                self._changed.set()

    async def _look(self, content: str) -> list[Member] | None:
        if self._membership is None:
            return []
        try:
            found = await self._etcd.range(keyspace.weights_of(content))
        except StoreError as error:
            logger.info("cannot ask who has the weights", extra={"fields": {"cause": str(error)}})
            return None
        members = []
        for item in found.items:
            try:
                record = WeightsRecord.decode(item.value, item.key)
            except BadRecordError as error:
                logger.warning("record not understood", extra={"fields": {"cause": str(error)}})
                continue
            members.append(Member(record.node, record.url, record.state == "here", item.create_revision))
        return members

    def _peer(self, member: Member) -> Peer:
        assert self._membership is not None, "only members of a cluster see a line"
        token = weights_token(self._membership.secret, member.node)
        return Peer(member.url, {"Authorization": f"Bearer {token}"}, self._tls, member.node)

    async def _ask(self, member: Member, content: str) -> Sharing | None:
        peer = self._peer(member)
        url = content_url(peer.base_url, content)
        limit = aiohttp.ClientTimeout(total=_ANSWER)
        # No agent redirects; whoever does would have this node ask what only it can reach.
        asked = self._session.get(url, headers=peer.headers, ssl=self._tls or True, timeout=limit, allow_redirects=False)
        try:
            async with asked as answer:
                if answer.status == 404:
                    return None
                answer.raise_for_status()
                said = await answer.json()
                return Sharing(int(said["work"]), tuple(str(each) for each in said["digests"]))
        except TimeoutError:
            raise  # it is an OSError too, and says something else than those
        except (aiohttp.ClientError, OSError) as error:
            raise SourceUnavailableError(f"{peer.base_url} does not answer: {error}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise SourceUnavailableError(f"{peer.base_url} does not answer as an agent: {error}") from error
