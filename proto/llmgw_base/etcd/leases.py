"""Granting, keeping and revoking leases over gRPC."""

from __future__ import annotations

import math
import secrets

from llmgw_base.clock import Clock
from llmgw_base.etcd import rpc_pb2 as pb
from llmgw_base.etcd.calls import CALL_TIMEOUT, Caller
from llmgw_base.etcd.errors import LeaseLostError, StoreRefusedError
from llmgw_base.etcd.lease import KeptLease
from llmgw_base.etcd.refusal import Reaction, Verdict
from llmgw_base.etcd.wire import END, CallFailedError, Link, Metadata


class Leases:
    """The leases of one store; it owns their tasks until they are revoked, abandoned or lost."""

    def __init__(self, caller: Caller, clock: Clock) -> None:
        self._caller = caller
        self._clock = clock
        self._kept: list[KeptLease] = []

    async def grant(self, ttl: float) -> KeptLease:
        """The id is chosen here, so that a grant whose answer was lost is not repeated under another one."""
        request = pb.LeaseGrantRequest(TTL=max(1, math.ceil(ttl)), ID=secrets.randbits(62) | 1)

        async def send(link: Link, metadata: Metadata) -> pb.LeaseGrantResponse:
            return await link.lease_grant(request, timeout=CALL_TIMEOUT, metadata=metadata)

        sent = self._clock.monotonic()
        try:
            granted = (await self._caller.call(f"grant a lease of {request.TTL} s", send)).value.TTL
        except StoreRefusedError as error:
            if "lease already exists" not in str(error):  # else the answer to an earlier try was lost
                raise
            granted = request.TTL
        lease = KeptLease(request.ID, float(granted), sent, clock=self._clock, ask=self._keep_alive, revoke=self._revoke)
        self._kept = [each for each in self._kept if each.kept]
        self._kept.append(lease)
        return lease

    async def close(self) -> None:
        for lease in self._kept:
            await lease.abandon()
        self._kept.clear()

    async def _keep_alive(self, lease_id: int) -> None:
        """One question, one answer: a stream that is kept open would need its own way of finding out that it is dead."""
        request = pb.LeaseKeepAliveRequest(ID=lease_id)

        async def send(link: Link, metadata: Metadata) -> int:
            exchange = link.lease_keep_alive(timeout=CALL_TIMEOUT, metadata=metadata)
            try:
                await exchange.write(request)
                response = await exchange.read()
            finally:
                exchange.cancel()
            if response is END:
                raise CallFailedError(Verdict(Reaction.UNKNOWN), "the server ended the call without an answer")
            assert isinstance(response, pb.LeaseKeepAliveResponse)
            return response.TTL

        if (await self._caller.call(f"keep lease {lease_id:x} alive", send, urgent=True)).value <= 0:
            raise LeaseLostError(f"etcd does not know lease {lease_id:x} (any more): it expired or was revoked")

    async def _revoke(self, lease_id: int) -> None:
        request = pb.LeaseRevokeRequest(ID=lease_id)

        async def send(link: Link, metadata: Metadata) -> pb.LeaseRevokeResponse:
            return await link.lease_revoke(request, timeout=CALL_TIMEOUT, metadata=metadata)

        await self._caller.call(f"revoke lease {lease_id:x}", send)
