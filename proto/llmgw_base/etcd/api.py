"""The store as the programs see it.

Three implementations: :class:`llmgw_base.etcd.client.EtcdStore` (real), and for tests ``llmgw_testing.memstore.MemoryStore``
(in memory, with an injected clock for leases) and ``llmgw_testing.memstore.FailingStore`` (raises a chosen error).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class KeyValue:
    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All keys under a prefix at one revision."""

    items: tuple[KeyValue, ...]
    revision: int
    cluster_id: int


# --- transactions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CreateRevisionIs:
    """True if the key's create_revision equals ``revision``; 0 means that the key does not exist."""

    key: str
    revision: int


@dataclass(frozen=True, slots=True)
class ModRevisionIs:
    key: str
    revision: int


Compare: TypeAlias = CreateRevisionIs | ModRevisionIs


@dataclass(frozen=True, slots=True)
class PutOp:
    key: str
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class DeleteOp:
    key: str


Operation: TypeAlias = PutOp | DeleteOp


# --- watching ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Put:
    """A key was created or its value changed. ``previous`` is None for a key that was not known before."""

    key: str
    value: bytes
    mod_revision: int
    previous: bytes | None
    create_revision: int = 0


@dataclass(frozen=True, slots=True)
class Deleted:
    key: str
    previous: bytes


@dataclass(frozen=True, slots=True)
class Synced:
    """What came so far is the whole prefix as of ``revision``. Comes after the first list and after each further one."""

    revision: int


@dataclass(frozen=True, slots=True)
class Stale:
    """The store does not answer; what is known may be out of date. The next :class:`Synced` ends it."""

    reason: str


@dataclass(frozen=True, slots=True)
class Frozen:
    """The store is not the one known before: another cluster id, a revision that went back, or suddenly nothing at all
    where there were keys. No :class:`Deleted` is derived from it; the watch holds what it knew and asks again, and a
    :class:`Synced` ends it once the store looks right or the operator restarts the program.
    """

    reason: str


Change: TypeAlias = Put | Deleted | Synced | Stale | Frozen


class Lease(Protocol):
    """A granted lease that is kept alive by a task of its own until it is revoked, closed or lost."""

    @property
    def id(self) -> int: ...

    @property
    def ttl(self) -> float:
        """Seconds that the server granted."""
        ...

    @property
    def lost(self) -> bool: ...

    async def wait_lost(self) -> str:
        """Returns when the lease is gone, with the reason: the server said so, or no keep-alive was answered for ``ttl``."""
        ...

    async def revoke(self) -> None:
        """Stops keeping it alive and revokes it on the server, best effort; its keys are gone at once."""
        ...

    async def abandon(self) -> None:
        """Stops keeping it alive without telling the server; the keys live on until the lease expires."""
        ...


class Store(Protocol):
    """All methods raise :class:`llmgw_base.etcd.errors.StoreError` and its children, nothing else of the transport's."""

    async def get(self, key: str) -> KeyValue | None: ...

    async def range(self, prefix: str) -> Snapshot:
        """All keys under ``prefix``, read in pages at one revision, sorted by key."""
        ...

    async def put(self, key: str, value: bytes, *, lease: int = 0) -> int:
        """Returns the revision of the write. Putting the same value twice is harmless, so it is retried when unanswered."""
        ...

    async def delete(self, key: str) -> bool:
        """Returns whether the key existed. Retried when unanswered; then True may mean that it had been deleted already."""
        ...

    async def txn(self, compares: Sequence[Compare], then: Sequence[Operation], otherwise: Sequence[Operation] = ()) -> bool:
        """Returns whether all compares held.

        Raises:
            OutcomeUnknownError: the answer was lost; read what is there before writing again.
            StoreUnavailableError: (itself, not its child) no member could be reached; surely nothing was done.
        """
        ...

    async def grant(self, ttl: float) -> Lease:
        """A lease of ``ttl`` seconds, rounded up to whole ones; the server may make it longer.

        Raises:
            StoreUnavailableError: no member answers.
        """
        ...

    def watch(self, prefix: str) -> AsyncGenerator[Change, None]:
        """Lists, then watches for ever from that revision: the keys as :class:`Put`, then :class:`Synced`, then changes.

        Never ends and never raises for a fault of the store: it yields :class:`Stale` or :class:`Frozen`, goes on trying
        (another member, with backoff), lists again after any break or compaction and yields only what differs by value.
        Once the store is back, the watch is right again within 2 s. Close it with ``aclose()``; closing the store ends it.

        A key that is written again with the value it has is no change, so read it before you compare on mod_revision.
        """
        ...

    async def close(self) -> None: ...
