"""Who leads: the candidate whose key is the oldest.

::

    grant a lease ──▶ put leader/<id> under it ──▶ oldest key? ──yes──▶ LEADING ──▶ lease lost or key gone ──┐
         ▲                                             └─no─▶ STANDBY (a watch tells when older ones go)     │
         └───────────────────────────────────────────────────────────────────────────────────────────────────┘

A candidate that leads by what its watch shows leads in truth: keys that come later are younger, so only the end of its own
key can end its lead, and every write of the leader compares that key (see :mod:`llmgw_coordinator.leader.fence`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from llmgw_base.clock import Clock
from llmgw_base.etcd import backoff
from llmgw_base.etcd.api import CreateRevisionIs, Deleted, DeleteOp, KeyValue, Lease, Put, PutOp, Store, Synced
from llmgw_base.etcd.errors import OutcomeUnknownError, StoreError
from llmgw_coordinator.leader.fence import Term
from llmgw_proto import keyspace
from llmgw_proto.records import CoordinatorRecord

#: Longest pause in seconds between two tries to stand.
RETRY_CAP = 2.0
#: Seconds that stepping down may take; the lease ends by itself after that.
STEP_DOWN_LIMIT = 2.0

logger = logging.getLogger(__name__)


class Election:
    """Stands for election for as long as :meth:`run` runs, under one lease that also holds ``coordinators/<id>``."""

    def __init__(self, store: Store, clock: Clock, record: CoordinatorRecord, ttl: float) -> None:
        self._store = store
        self._clock = clock
        self._record = record
        self._ttl = ttl
        self._key = keyspace.leader(record.id)
        self._term: Term | None = None
        self._retired = False
        self._past: set[int] = set()
        """Leases of earlier candidacies. After etcd was down they are armed anew, so their keys would stay for a while."""
        self._listeners: list[Callable[[], None]] = []
        self.problem: str | None = None
        """Why this coordinator is not even a candidate."""

    @property
    def term(self) -> Term | None:
        """Not None while this coordinator leads."""
        return self._term if self._term is not None and not self._term.over else None

    def on_change(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    async def run(self) -> None:
        """Until cancelled; then the lease is revoked."""
        attempt = 0
        told = ""
        while True:
            began = self._clock.monotonic()
            try:
                await self._stand()
                told = ""
            except StoreError as error:
                if str(error) != told:
                    logger.warning("cannot stand for election, trying on", extra={"fields": {"cause": str(error)}})
                    self.problem = f"this coordinator cannot stand for election: {error}"
                told = str(error)
            attempt = 0 if self._clock.monotonic() - began > self._ttl else attempt + 1
            await self._clock.sleep(backoff.delay(attempt, RETRY_CAP))

    async def step_down(self) -> None:
        """Stops leading and standing at once; a standby takes over as soon as it sees the key go."""
        self._retired = True
        led = self._term is not None
        self._set_term(None)
        try:
            async with asyncio.timeout(STEP_DOWN_LIMIT):
                await self._store.delete(self._key)
        except (StoreError, TimeoutError) as error:
            logger.warning(
                "could not step down, the lease will expire", extra={"fields": {"cause": str(error) or "no answer in time"}}
            )
        else:
            logger.info("stepped down", extra={"fields": {"led": led}})

    async def _stand(self) -> None:
        """One candidacy: returns when it is over."""
        lease = await self._store.grant(self._ttl)
        try:
            await self._store.put(keyspace.coordinator(self._record.id), self._record.encode(), lease=lease.id)
            follow = asyncio.create_task(self._follow(lease), name="follow election")
            lost = asyncio.create_task(lease.wait_lost(), name="wait for loss of lease")
            try:
                await asyncio.wait({follow, lost}, return_when=asyncio.FIRST_COMPLETED)
                self._set_term(None)
                ended = await follow if follow.done() else await lost
                logger.warning("no candidate any more", extra={"fields": {"cause": ended}})
            finally:
                self._set_term(None)
                follow.cancel()
                lost.cancel()
                await asyncio.gather(follow, lost, return_exceptions=True)
        finally:
            self._past.add(lease.id)
            await lease.revoke()

    async def _follow(self, lease: Lease) -> str:
        """Watches the candidates and keeps ``term`` right; returns why the candidacy is over."""
        candidates: dict[str, int] = {}
        mine = 0
        listed = False
        async for change in self._store.watch(keyspace.LEADER):
            if isinstance(change, Put):
                candidates[change.key] = change.create_revision
            elif isinstance(change, Deleted):
                candidates.pop(change.key, None)
            elif isinstance(change, Synced):
                listed = True
            if not listed or self._retired:
                continue
            if mine and candidates.get(self._key, mine) != mine:
                return "its key was taken over"
            if not mine and (self._key not in candidates or self._past):
                mine = await self._create_key(lease)
            elif mine and isinstance(change, Deleted) and change.key == self._key:
                return "its key was deleted"
            self._judge(candidates, mine, lease)
        return "the store was closed"

    async def _create_key(self, lease: Lease) -> int:
        """Puts the candidate's key; returns its create_revision, 0 if it is there already (its deletion will be seen)."""
        try:
            await self._store.txn([CreateRevisionIs(self._key, 0)], [PutOp(self._key, self._record.encode(), lease=lease.id)])
        except OutcomeUnknownError:
            logger.info("the answer to standing for election was lost; reading what came of it")
        found = await self._store.get(self._key)
        if found is not None and found.lease == lease.id:
            self._past.clear()
            return found.create_revision
        await self._clear_away(found)
        return 0

    async def _clear_away(self, found: KeyValue | None) -> None:
        """Deletes the key of this program's own earlier candidacy; never that of a namesake."""
        if found is not None and found.lease in self._past:
            await self._store.txn([CreateRevisionIs(self._key, found.create_revision)], [DeleteOp(self._key)])

    def _judge(self, candidates: dict[str, int], mine: int, lease: Lease) -> None:
        self.problem = None
        if not mine:
            self.problem = (
                f"a coordinator named {self._record.id} is already there: an earlier run whose lease has not ended, or "
                "another host with the same id; wait, or give each host its own id"
            )
            return
        if self._term is None and candidates.get(self._key) == mine == min(candidates.values()):
            self._set_term(Term(self._key, mine, lease))

    def _set_term(self, term: Term | None) -> None:
        if term is self._term:
            return
        self._term = term
        if term is not None:
            logger.info("this coordinator leads", extra={"fields": {"id": self._record.id, "term": term.create_revision}})
        else:
            logger.info("this coordinator leads no longer", extra={"fields": {"id": self._record.id}})
        for listener in self._listeners:
            listener()
