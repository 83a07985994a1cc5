"""Reading and writing keys."""

from __future__ import annotations

from collections.abc import Sequence

from llmgw_base.etcd import rpc_pb2 as pb
from llmgw_base.etcd.api import Compare, CreateRevisionIs, KeyValue, Operation, PutOp, Snapshot
from llmgw_base.etcd.calls import CALL_TIMEOUT, Caller
from llmgw_base.etcd.errors import CompactedError, StoreUnavailableError
from llmgw_base.etcd.wire import Link, Metadata

#: Keys per answer, so that a list of ten thousand neither exceeds a message nor holds up the server.
PAGE = 500
#: How often a list is begun again when its revision was compacted while it was read.
LIST_TRIES = 3


def range_end(prefix: str) -> bytes:
    """The end of the range of all keys that begin with ``prefix``; all keys if it is empty."""
    raw = encode(prefix)
    for index in range(len(raw) - 1, -1, -1):
        if raw[index] < 0xFF:
            return raw[:index] + bytes([raw[index] + 1])
    return b"\0"


def key_value(item: pb.KeyValue) -> KeyValue:
    return KeyValue(decode(item.key), item.value, item.create_revision, item.mod_revision, item.lease)


def decode(key: bytes) -> str:
    """Keys of others may be no UTF-8; they must not break the watch of a prefix that holds them."""
    return key.decode("utf-8", "surrogateescape")


def encode(key: str) -> bytes:
    return key.encode("utf-8", "surrogateescape")


class KV:
    """The part of :class:`llmgw_base.etcd.api.Store` that concerns keys."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def get(self, key: str) -> KeyValue | None:
        request = pb.RangeRequest(key=encode(key))
        answer = await self._range(f"get {key}", request)
        return key_value(answer.kvs[0]) if answer.kvs else None

    async def list(self, prefix: str, revision: int = 0) -> Snapshot:
        """At ``revision``, or else the newest; then begun again if that is compacted meanwhile."""
        for _ in range(LIST_TRIES - 1):
            try:
                return await self._list(prefix, revision)
            except CompactedError:
                if revision:
                    raise
        return await self._list(prefix, revision)

    async def _list(self, prefix: str, revision: int) -> Snapshot:
        what = f"list {prefix}"
        end = range_end(prefix)
        request = pb.RangeRequest(key=encode(prefix) or b"\0", range_end=end, limit=PAGE, revision=revision)
        answer = await self._range(what, request)
        revision = revision or answer.header.revision
        cluster_id = answer.header.cluster_id
        items = [key_value(item) for item in answer.kvs]
        while answer.more:
            after = answer.kvs[-1].key + b"\0"
            answer = await self._range(what, pb.RangeRequest(key=after, range_end=end, limit=PAGE, revision=revision))
            if answer.header.cluster_id != cluster_id:
                raise StoreUnavailableError(f"etcd: {what}: the endpoints lead to different clusters; check etcd.endpoints")
            items += [key_value(item) for item in answer.kvs]
        return Snapshot(tuple(items), revision, cluster_id)

    async def put(self, key: str, value: bytes, lease: int) -> int:
        request = pb.PutRequest(key=encode(key), value=value, lease=lease)

        async def send(link: Link, metadata: Metadata) -> pb.PutResponse:
            return await link.put(request, timeout=CALL_TIMEOUT, metadata=metadata)

        return (await self._caller.call(f"put {key}", send)).value.header.revision

    async def delete(self, key: str) -> bool:
        """Whether it existed; True also when an answer was lost and it may have."""
        request = pb.DeleteRangeRequest(key=encode(key))

        async def send(link: Link, metadata: Metadata) -> pb.DeleteRangeResponse:
            return await link.delete_range(request, timeout=CALL_TIMEOUT, metadata=metadata)

        answer = await self._caller.call(f"delete {key}", send)
        return answer.value.deleted > 0 or answer.repeated

    async def txn(self, compares: Sequence[Compare], then: Sequence[Operation], otherwise: Sequence[Operation]) -> bool:
        request = pb.TxnRequest(
            compare=[_compare(each) for each in compares],
            success=[_operation(each) for each in then],
            failure=[_operation(each) for each in otherwise],
        )

        async def send(link: Link, metadata: Metadata) -> pb.TxnResponse:
            return await link.txn(request, timeout=CALL_TIMEOUT, metadata=metadata)

        keys = ", ".join(dict.fromkeys(each.key for each in (*compares, *then, *otherwise)))
        return (await self._caller.call(f"transaction on {keys}", send, once=True)).value.succeeded

    async def _range(self, what: str, request: pb.RangeRequest) -> pb.RangeResponse:
        async def send(link: Link, metadata: Metadata) -> pb.RangeResponse:
            return await link.range(request, timeout=CALL_TIMEOUT, metadata=metadata)

        return (await self._caller.call(what, send)).value


def _compare(compare: Compare) -> pb.Compare:
    key = encode(compare.key)
    if isinstance(compare, CreateRevisionIs):
        return pb.Compare(key=key, target=pb.Compare.CREATE, result=pb.Compare.EQUAL, create_revision=compare.revision)
    return pb.Compare(key=key, target=pb.Compare.MOD, result=pb.Compare.EQUAL, mod_revision=compare.revision)


def _operation(operation: Operation) -> pb.RequestOp:
    key = encode(operation.key)
    if isinstance(operation, PutOp):
        return pb.RequestOp(request_put=pb.PutRequest(key=key, value=operation.value, lease=operation.lease))
    return pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=key))
