"""The right to write, and the only way in which the leader writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmgw_base.etcd.api import Compare, CreateRevisionIs, Lease, Operation, Store
from llmgw_coordinator.errors import NotLeaderError


@dataclass(frozen=True, slots=True)
class Term:
    """One time of leading: the own key in the election, as it was created.

    As long as the key has this create_revision no other candidate can be older, so nobody else leads.
    """

    key: str
    create_revision: int
    lease: Lease

    @property
    def over(self) -> bool:
        """By the own clock; the server lets go of the lease no earlier."""
        return self.lease.lost


async def fenced(store: Store, term: Term, compares: Sequence[Compare], then: Sequence[Operation]) -> bool:
    """Writes if this coordinator still leads and all compares hold; returns whether they did.

    Raises:
        NotLeaderError: the term is over; nothing was written.
        OutcomeUnknownError: it may have been written.
        StoreError: it was not written.
    """
    if term.over:
        raise NotLeaderError("the lease of this coordinator is lost")
    if await store.txn([CreateRevisionIs(term.key, term.create_revision), *compares], then):
        return True
    own = await store.get(term.key)
    if own is None or own.create_revision != term.create_revision:
        raise NotLeaderError("another coordinator leads; the late write was refused")
    return False
