"""The real store: a client of etcd's v3 API over gRPC.

::

    EtcdStore ── KV ─────────┐
              ── Leases ─────┼─▶ Caller (failover, retries) ─▶ Member (one endpoint) ─▶ Link (one gRPC channel)
              ── Watcher ────┘        └─▶ Tokens
                  └─▶ EtcdSource, EtcdStream
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Sequence
from typing import Self

from llmgw_base.clock import Clock
from llmgw_base.config import EtcdSection
from llmgw_base.etcd import rpc_pb2 as pb
from llmgw_base.etcd.api import Change, Compare, KeyValue, Lease, Operation, Snapshot
from llmgw_base.etcd.calls import CALL_TIMEOUT, Caller
from llmgw_base.etcd.kv import KV
from llmgw_base.etcd.leases import Leases
from llmgw_base.etcd.member import Member
from llmgw_base.etcd.refusal import Reaction, Verdict
from llmgw_base.etcd.stream import EtcdSource
from llmgw_base.etcd.target import parse
from llmgw_base.etcd.tokens import Tokens
from llmgw_base.etcd.watcher import Watcher
from llmgw_base.etcd.wire import CallFailedError, Link, Metadata


class EtcdStore:
    """A :class:`llmgw_base.etcd.api.Store` on a real etcd.

    Making one does no I/O, so a program can start while etcd is down: calls raise StoreUnavailableError and watches say
    :class:`~llmgw_base.etcd.api.Stale` until it is there. The server's version is checked at first contact, and again after
    every new connection.
    """

    def __init__(self, section: EtcdSection, clock: Clock, *, trial: bool = False) -> None:
        """
        Args:
            trial: accept versions with known faults, with a warning; also set by ``section.trial``.

        Raises:
            StoreRefusedError: an endpoint cannot be used.
        """
        targets = [parse(each, tls=section.tls is not None) for each in section.endpoints]
        random.shuffle(targets)  # clients spread over the members
        members = [Member(target, section.tls, clock=clock, trial=trial or section.trial) for target in targets]
        self._clock = clock
        self._tokens = Tokens(section.user, section.password_file)
        self._caller = Caller(members, self._tokens, clock)
        self._kv = KV(self._caller)
        self._leases = Leases(self._caller, clock)

    @classmethod
    async def connect(cls, section: EtcdSection, *, clock: Clock, trial: bool = False) -> Self:
        """Makes a store and checks it.

        Raises:
            StoreError: as :meth:`check`; then nothing is left open.
        """
        store = cls(section, clock, trial=trial)
        try:
            await store.check()
        except BaseException:
            await store.close()
            raise
        return store

    async def check(self) -> None:
        """Makes contact: some member answers, knows a leader, accepts user and password, and has a version to trust.

        Raises:
            StoreUnavailableError: no member answers, or none knows a leader.
            StoreUnsuitableError: the version has known faults that lose data.
            StoreAuthError: wrong user or password.
        """

        async def send(link: Link, metadata: Metadata) -> None:
            status = await link.status(pb.StatusRequest(), timeout=CALL_TIMEOUT, metadata=metadata)
            if not status.leader:
                raise CallFailedError(Verdict(Reaction.NOT_DONE), "it knows no leader; most of the members must run")

        await self._caller.call("status", send)

    async def get(self, key: str) -> KeyValue | None:
        return await self._kv.get(key)

    async def range(self, prefix: str) -> Snapshot:
        return await self._kv.list(prefix)

    async def put(self, key: str, value: bytes, *, lease: int = 0) -> int:
        return await self._kv.put(key, value, lease)

    async def delete(self, key: str) -> bool:
        return await self._kv.delete(key)

    async def txn(self, compares: Sequence[Compare], then: Sequence[Operation], otherwise: Sequence[Operation] = ()) -> bool:
        return await self._kv.txn(compares, then, otherwise)

    async def grant(self, ttl: float) -> Lease:
        return await self._leases.grant(ttl)

    def watch(self, prefix: str) -> AsyncGenerator[Change, None]:
        return Watcher(EtcdSource(self._caller, self._kv, self._clock), prefix, self._clock).changes()

    async def close(self) -> None:
        """Abandons what leases are still kept and closes the connections; watches end."""
        await self._leases.close()
        await self._caller.close()
