"""The data of an etcd, in memory: revisions, history, transactions, leases. Plain code without tasks; time is a clock."""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from llmgw_base.clock import Clock
from llmgw_base.etcd.api import Compare, CreateRevisionIs, DeleteOp, KeyValue, Operation, PutOp, Snapshot
from llmgw_base.etcd.errors import (
    CompactedError,
    LeaseLostError,
    StoreFullError,
    StoreRefusedError,
)
from llmgw_base.etcd.mirror import Event

_cluster_ids = itertools.count(0xC1)
_lease_ids = itertools.count(0x1EA5E)


@dataclass(slots=True)
class _Lease:
    ttl: float
    expires_at: float


@dataclass(slots=True)
class _Data:
    """What a backup holds."""

    revision: int = 1
    compacted: int = 0
    items: dict[str, KeyValue] = field(default_factory=dict)
    history: list[Event] = field(default_factory=list)


class MemoryServer:
    """One etcd that any number of :class:`llmgw_testing.memstore.MemoryStore` share, as programs share a real one.

    Beside what a client may ask, it can be harmed: :meth:`stop`, :meth:`wipe`, :meth:`backup` and :meth:`restore`,
    :meth:`fill`, :meth:`compact`, :meth:`expire`.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._data = _Data()
        self._leases: dict[int, _Lease] = {}
        self._changed = asyncio.Event()
        self.cluster_id = next(_cluster_ids)
        self.running = True
        self.full = False
        #: Counts every change of anything.
        self.version = 0
        #: Counts what breaks every watch stream: a stop, a wipe, a restore.
        self.generation = 0

    # --- harm -------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Nothing answers until :meth:`start`; leases do not run down meanwhile."""
        self.running = False
        self._break()

    def start(self, *, leases_expired: bool = False) -> None:
        """Answers again. A restarted etcd gives every lease its whole time again; one that was frozen for longer than
        their time drops them all at once (``leases_expired``).
        """
        self.running = True
        for lease_id, lease in list(self._leases.items()):
            lease.expires_at = self._clock.monotonic() + lease.ttl
            if leases_expired:
                self.expire(lease_id)
        self._break()

    def wipe(self, *, same_cluster_id: bool = False) -> None:
        """The data folder is lost. With the same flags a real etcd gets the same cluster id again."""
        self._data, self._leases = _Data(), {}
        if not same_cluster_id:
            self.cluster_id = next(_cluster_ids)
        self._break()

    def backup(self) -> object:
        return copy.deepcopy(self._data)

    def restore(self, backup: object) -> None:
        """Back to an older state, under the same cluster id; leases are gone, their keys stay until deleted."""
        assert isinstance(backup, _Data)
        self._data, self._leases = copy.deepcopy(backup), {}
        self._break()

    def fill(self) -> None:
        """The NOSPACE alarm: puts and grants fail."""
        self.full = True

    def free(self) -> None:
        self.full = False

    def expire(self, lease_id: int) -> None:
        """The lease ends now and takes its keys along."""
        self._leases.pop(lease_id, None)
        self._write([DeleteOp(key) for key, item in self._data.items.items() if item.lease == lease_id])

    def compact(self) -> None:
        """Forgets all history up to now."""
        data = self._data
        data.compacted = data.revision
        latest = sorted(data.items.values(), key=lambda item: item.mod_revision)
        data.history = [Event(item.key, item.value, item.mod_revision, item.create_revision, item.lease) for item in latest]
        self._notify()

    def _break(self) -> None:
        self.generation += 1
        self._notify()

    # --- what clients ask -------------------------------------------------------------------------------------------

    @property
    def revision(self) -> int:
        return self._data.revision

    def get(self, key: str) -> KeyValue | None:
        self._expire_due()
        return self._data.items.get(key)

    def snapshot(self, prefix: str, revision: int = 0) -> Snapshot:
        self._expire_due()
        data = self._data
        if revision > data.revision:
            raise StoreRefusedError(f"etcd: revision {revision} is in the future")
        if revision and revision < data.compacted:
            raise CompactedError(f"etcd: revision {revision} was compacted")
        items = data.items if not revision or revision == data.revision else self._at(revision)
        found = sorted((item for key, item in items.items() if key.startswith(prefix)), key=lambda item: item.key)
        return Snapshot(tuple(found), revision or data.revision, self.cluster_id)

    def events(self, prefix: str, after: int) -> list[Event]:
        self._expire_due()
        if after < self._data.compacted:
            raise CompactedError(f"etcd: revision {after + 1} was compacted")
        return [event for event in self._data.history if event.mod_revision > after and event.key.startswith(prefix)]

    def txn(self, compares: Sequence[Compare], then: Sequence[Operation], otherwise: Sequence[Operation]) -> tuple[bool, int]:
        """Whether the compares held, and how many keys were deleted."""
        self._expire_due()
        for operations in (then, otherwise):
            self._check(operations)
        held = all(self._holds(compare) for compare in compares)
        return held, self._write(then if held else otherwise)

    def grant(self, ttl: float) -> int:
        self._expire_due()
        if self.full:
            raise StoreFullError(FULL)
        lease_id = next(_lease_ids)
        self._leases[lease_id] = _Lease(ttl, self._clock.monotonic() + ttl)
        self._notify()
        return lease_id

    def keep_alive(self, lease_id: int) -> None:
        self._expire_due()
        lease = self._lease(lease_id)
        lease.expires_at = self._clock.monotonic() + lease.ttl

    def revoke(self, lease_id: int) -> None:
        self._expire_due()
        self._lease(lease_id)
        self.expire(lease_id)

    async def changed(self, since: int) -> None:
        """Returns when ``version`` is no longer ``since``; a lease that runs out changes it too."""
        while self.version == since:
            await self._wait(self._changed)

    async def _wait(self, event: asyncio.Event) -> None:
        timer = None
        if self._leases and self.running:
            due = min(lease.expires_at for lease in self._leases.values())
            timer = asyncio.ensure_future(self._clock.sleep(due - self._clock.monotonic()))
        waiting = asyncio.ensure_future(event.wait())
        tasks = [waiting] if timer is None else [waiting, timer]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self._expire_due()

    # --- inside -----------------------------------------------------------------------------------------------------

    def _at(self, revision: int) -> dict[str, KeyValue]:
        """The items at an older revision: today's, with what happened since undone."""
        touched = {event.key for event in self._data.history if event.mod_revision > revision}
        items = {key: item for key, item in self._data.items.items() if key not in touched}
        for key in touched:
            last = self._last(key, revision)
            if last is not None and last.value is not None:
                items[key] = KeyValue(key, last.value, last.create_revision, last.mod_revision, last.lease)
        return items

    def _last(self, key: str, revision: int) -> Event | None:
        found = [event for event in self._data.history if event.key == key and event.mod_revision <= revision]
        return found[-1] if found else None

    def _holds(self, compare: Compare) -> bool:
        item = self._data.items.get(compare.key)
        if isinstance(compare, CreateRevisionIs):
            return (item.create_revision if item else 0) == compare.revision
        return (item.mod_revision if item else 0) == compare.revision

    def _check(self, operations: Sequence[Operation]) -> None:
        put = [operation.key for operation in operations if isinstance(operation, PutOp)]
        deleted = {operation.key for operation in operations if isinstance(operation, DeleteOp)}
        if len(put) != len(set(put)) or deleted & set(put):
            raise StoreRefusedError("etcd: duplicate key given in txn request")
        for operation in operations:
            if not operation.key:
                raise StoreRefusedError("etcd: key is not provided")
            if isinstance(operation, PutOp):
                if self.full:
                    raise StoreFullError(FULL)
                if operation.lease:
                    self._lease(operation.lease)

    def _write(self, operations: Iterable[Operation]) -> int:
        data = self._data
        revision = data.revision + 1
        deleted = 0
        for operation in operations:
            before = data.items.get(operation.key)
            if isinstance(operation, PutOp):
                created = before.create_revision if before else revision
                data.items[operation.key] = KeyValue(operation.key, operation.value, created, revision, operation.lease)
                data.history.append(Event(operation.key, operation.value, revision, created, operation.lease))
                data.revision = revision
            elif before is not None:
                deleted += 1
                del data.items[operation.key]
                data.history.append(Event(operation.key, None, revision))
                data.revision = revision
        self._notify()
        return deleted

    def _lease(self, lease_id: int) -> _Lease:
        lease = self._leases.get(lease_id)
        if lease is None:
            raise LeaseLostError(f"etcd does not know lease {lease_id:x} (any more): it expired or was revoked")
        return lease

    def _expire_due(self) -> None:
        if self.running:
            now = self._clock.monotonic()
            for lease_id in [key for key, lease in self._leases.items() if lease.expires_at <= now]:
                self.expire(lease_id)

    def _notify(self) -> None:
        self.version += 1
        event, self._changed = self._changed, asyncio.Event()
        event.set()


FULL = "etcd is out of space (NOSPACE alarm): compact and defragment it, or raise its quota, then disarm the alarm"
