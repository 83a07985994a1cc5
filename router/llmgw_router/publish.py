"""Tells the cluster about this router: ``routers/<id>`` under a lease of its own, every 2 s while it changes."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from llmgw_base.clock import Clock
from llmgw_base.etcd.api import Lease, Store
from llmgw_base.etcd.errors import StoreError
from llmgw_proto import keyspace
from llmgw_proto.records import RouterLoad, RouterRecord
from llmgw_router.account.figures import Family

logger = logging.getLogger(__name__)
_TTL = 10.0
_PERIOD = 2.0


def loads(families: list[Family]) -> dict[str, RouterLoad]:
    """Each model's load, from the figures of all workers. Pure."""
    numbers: dict[str, dict[str, int]] = {}
    for family in families:
        field = family.name.removeprefix("llmgw_router_model_")
        if field == family.name:
            continue
        for labels, values in family.samples:
            numbers.setdefault(labels[0], {})[field] = int(values[0])
    return {name: RouterLoad(**fields) for name, fields in sorted(numbers.items())}


class Publisher:
    def __init__(
        self,
        store: Store,
        clock: Clock,
        gather: Callable[[], Awaitable[list[Family]]],
        *,
        router_id: str,
        address: str,
        version: str,
    ) -> None:
        self._store = store
        self._clock = clock
        self._gather = gather
        self._record = RouterRecord(id=router_id, address=address, version=version, started_at=clock.wall())
        self._lease: Lease | None = None
        self._written: RouterRecord | None = None

    async def run(self) -> None:
        """Until cancelled, then :meth:`withdraw`; the store's faults are waited out."""
        while True:
            try:
                await self._publish()
            except StoreError as error:
                logger.debug("the router's record is not written: %s", error)
            await self._clock.sleep(_PERIOD)

    async def withdraw(self) -> None:
        """Takes the record out, best effort."""
        lease, self._lease = self._lease, None
        if lease is not None:
            try:
                await lease.revoke()
            except StoreError as error:
                logger.debug("the router's record is left to expire: %s", error)

    async def _publish(self) -> None:
        if self._lease is None or self._lease.lost:
            self._lease = None
            self._lease = await self._store.grant(_TTL)
            self._written = None
        record = self._record.model_copy(update={"models": loads(await self._gather())})
        if record != self._written:
            await self._store.put(keyspace.router(record.id), record.encode(), lease=self._lease.id)
            self._written = record
