"""One watch stream over gRPC, with an ear for silence."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

from llmgw_base.clock import Clock
from llmgw_base.etcd import rpc_pb2 as pb
from llmgw_base.etcd.api import Snapshot
from llmgw_base.etcd.calls import CALL_TIMEOUT, Caller
from llmgw_base.etcd.errors import CompactedError, StoreAuthError, StoreUnavailableError
from llmgw_base.etcd.identity import Record
from llmgw_base.etcd.kv import KV, decode, encode, range_end
from llmgw_base.etcd.mirror import Event
from llmgw_base.etcd.refusal import Reaction, Verdict, judge
from llmgw_base.etcd.timers import done_within, reap
from llmgw_base.etcd.wire import END, CallFailedError, Exchange, Link, Metadata, answer
from llmgw_proto import keyspace

#: Seconds without a word after which the server is asked how far it is.
QUIET = 2.0
#: Seconds to answer that.
PROGRESS_TIMEOUT = 1.5


class EtcdStream:
    """See :class:`llmgw_base.etcd.watcher.Stream`."""

    def __init__(
        self, exchange: Exchange[pb.WatchRequest, pb.WatchResponse], link: Link, caller: Caller, after: Snapshot, clock: Clock
    ) -> None:
        self._exchange = exchange
        self._link = link
        self._caller = caller
        self._clock = clock
        self._cluster_id = after.cluster_id
        self._revision = after.revision
        self._sending: list[asyncio.Future[None]] = []
        self._reading: asyncio.Future[pb.WatchResponse] | None = None

    async def create(self, prefix: str) -> None:
        """
        Raises:
            CallFailedError, StoreError: the watch was not accepted.
        """
        create = pb.WatchCreateRequest(
            key=encode(prefix) or b"\0",
            range_end=range_end(prefix),
            start_revision=self._revision + 1,
            progress_notify=True,
        )
        self._send(pb.WatchRequest(create_request=create))
        try:
            created = _checked(await self._read(CALL_TIMEOUT))
        except TimeoutError:
            raise CallFailedError(Verdict(Reaction.UNKNOWN), f"no answer within {CALL_TIMEOUT:g} s") from None
        if created.header.cluster_id != self._cluster_id:
            raise StoreUnavailableError("etcd: the endpoints lead to different clusters; check etcd.endpoints")

    async def next(self, until: float) -> Sequence[Event] | None:
        asked = False
        while (left := until - self._clock.monotonic()) > 0:
            patience = PROGRESS_TIMEOUT if asked else QUIET
            try:
                response = _checked(await self._read(min(patience, left)))
            except TimeoutError:
                if left <= patience:
                    break
                if not asked:
                    asked = True
                    self._send(pb.WatchRequest(progress_request=pb.WatchProgressRequest()))
                    continue
                if await self._caller.alive(self._link):
                    break  # the connection is good, only the watch is quiet: a list tells what it should have told
                raise StoreUnavailableError("etcd: the watch is silent and the connection does not answer") from None
            except CallFailedError as failure:
                await self._caller.broke(self._link, failure)
                raise StoreUnavailableError(f"etcd: the watch broke: {failure.text}") from None
            self._link.heard = self._clock.monotonic()
            asked = False
            if response.events:
                events = [_event(event) for event in response.events]
                self._revision = max(self._revision, events[-1].mod_revision)
                return events
            if response.header.revision < self._revision:
                await self._caller.broke(self._link)
                raise StoreUnavailableError(
                    f"etcd: the member that is watched is at revision {response.header.revision}, "
                    f"but revision {self._revision} was seen already"
                )
        return None

    async def close(self) -> None:
        self._exchange.cancel()
        await reap(*self._sending, *([self._reading] if self._reading is not None else []))

    async def _read(self, seconds: float) -> pb.WatchResponse:
        """The next response; a read that times out goes on, and the next call takes it up."""
        if self._reading is None:
            self._reading = asyncio.ensure_future(answer(self._exchange.read))
        if not await done_within(self._clock, self._reading, seconds):
            raise TimeoutError
        reading, self._reading = self._reading, None
        response = reading.result()
        if response is END:
            raise CallFailedError(Verdict(Reaction.UNKNOWN), "the server ended it")
        assert isinstance(response, pb.WatchResponse)
        return response

    def _send(self, request: pb.WatchRequest) -> None:
        """Does not wait: on a dead connection a write may take for ever, and what counts is whether something comes back."""
        self._sending = [task for task in self._sending if not task.done() or task.exception() is not None]
        self._sending.append(asyncio.ensure_future(answer(lambda: self._exchange.write(request))))


class EtcdSource:
    """See :class:`llmgw_base.etcd.watcher.Source`."""

    def __init__(self, caller: Caller, kv: KV, clock: Clock) -> None:
        self._caller = caller
        self._kv = kv
        self._clock = clock

    @property
    def closed(self) -> bool:
        return self._caller.closed

    async def snapshot(self, prefix: str, revision: int = 0) -> Snapshot:
        return await self._kv.list(prefix, revision)

    async def record(self) -> Record:
        try:
            record = await self._kv.get(keyspace.CLUSTER)
        except StoreAuthError:
            return Record()
        return Record(record.create_revision if record is not None else 0)

    @contextlib.asynccontextmanager
    async def follow(self, prefix: str, after: Snapshot) -> AsyncIterator[EtcdStream]:
        async def send(link: Link, metadata: Metadata) -> EtcdStream:
            stream = EtcdStream(link.watch(metadata=metadata), link, self._caller, after, self._clock)
            try:
                await stream.create(prefix)
            except BaseException:
                await stream.close()
                raise
            return stream

        stream = (await self._caller.call(f"watch {prefix}", send)).value
        try:
            yield stream
        finally:
            await stream.close()

    async def pause(self, seconds: float) -> None:
        await self._clock.sleep(seconds)


def _event(event: pb.Event) -> Event:
    item = event.kv
    value = None if event.type == pb.Event.DELETE else item.value
    return Event(decode(item.key), value, item.mod_revision, item.create_revision, item.lease)


def _checked(response: pb.WatchResponse) -> pb.WatchResponse:
    if not response.canceled:
        return response
    if response.compact_revision:
        raise CompactedError(f"etcd: revisions before {response.compact_revision} were compacted")
    if judge(None, response.cancel_reason).error is StoreAuthError:
        raise StoreAuthError(f"etcd: watch refused: {response.cancel_reason}")
    raise StoreUnavailableError(f"etcd: the server cancelled the watch: {response.cancel_reason or 'it gave no reason'}")
