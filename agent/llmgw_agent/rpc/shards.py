"""The service Shards: details, draining, restarts, KV-cache events, telemetry."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager

import grpc
from grpc import aio

from llmgw_agent.errors import NotNowError
from llmgw_agent.kv_events import Subscriber
from llmgw_agent.kv_events.feed import Begun, Item, Missing, Raw, Source, feed
from llmgw_agent.rpc.guard import Caller, Guard
from llmgw_agent.rpc.telemetry import Telemetry
from llmgw_agent.shard.context import Context
from llmgw_agent.shard.insight import describe
from llmgw_agent.shard.launch import kv_sockets
from llmgw_agent.shard.runner import Runner
from llmgw_agent.shard.supervisor import Supervisor
from llmgw_agent.shard.worker import Worker
from llmgw_proto import shards_pb2, shards_pb2_grpc

LONGEST_DRAIN = 86_400.0


class NotHereError(Exception):
    """There is no such shard on this node. Reaction: tell whoever asked."""


_CODES: tuple[tuple[type[Exception], grpc.StatusCode], ...] = (
    (NotHereError, grpc.StatusCode.NOT_FOUND),
    (NotNowError, grpc.StatusCode.FAILED_PRECONDITION),
    (ValueError, grpc.StatusCode.INVALID_ARGUMENT),
)


@asynccontextmanager
async def _refusals(context: Caller) -> AsyncIterator[None]:
    try:
        yield
    except tuple(kind for kind, _ in _CODES) as error:
        code = next(code for kind, code in _CODES if isinstance(error, kind))
        await context.abort(code, str(error))


class ShardsService(shards_pb2_grpc.ShardsServicer):
    def __init__(
        self,
        token: Callable[[], str | None],
        context: Context,
        supervisor: Callable[[], Supervisor | None],
        telemetry: Telemetry,
    ) -> None:
        """
        Args:
            token: None until the agent is in a cluster; nobody may call before.
            supervisor: None until it is known what runs.
        """
        self._guard, self._context, self._supervisor, self._telemetry = Guard(token), context, supervisor, telemetry

    def add_to(self, server: aio.Server) -> None:
        shards_pb2_grpc.add_ShardsServicer_to_server(self, server)  # type: ignore[no-untyped-call]  # generated

    async def Details(  # noqa: N802 - the name in the .proto
        self, request: shards_pb2.DetailsRequest, context: Caller
    ) -> shards_pb2.ShardDetails:
        await self._guard.authorise(context)
        async with _refusals(context):
            return await describe(self._context, self._runner(request.shard))

    async def Drain(  # noqa: N802 - the name in the .proto
        self, request: shards_pb2.DrainRequest, context: Caller
    ) -> shards_pb2.DrainState:
        await self._guard.authorise(context)
        async with _refusals(context):
            return await self._drain(request.shard, drained=True)

    async def Undrain(  # noqa: N802 - the name in the .proto
        self, request: shards_pb2.UndrainRequest, context: Caller
    ) -> shards_pb2.DrainState:
        await self._guard.authorise(context)
        async with _refusals(context):
            return await self._drain(request.shard, drained=False)

    async def Restart(  # noqa: N802 - the name in the .proto
        self, request: shards_pb2.RestartRequest, context: Caller
    ) -> shards_pb2.RestartState:
        await self._guard.authorise(context)
        async with _refusals(context):
            drain = request.drain_seconds if request.HasField("drain_seconds") else None
            if drain is not None and not 0 <= drain <= LONGEST_DRAIN:
                raise ValueError(f"drain_seconds: {drain} is not between 0 and {LONGEST_DRAIN:g}")
            worker, runner = self._worker(request.shard), self._runner(request.shard)
            saved = runner.ledger.saved
            worker.restart(drain)
            runs = saved.attempt is not None and saved.process is not None
            attempt = saved.attempt.id if saved.attempt is not None and runs else ""
            return shards_pb2.RestartState(shard=request.shard, attempt=attempt)

    async def KvEvents(  # noqa: N802 - the name in the .proto
        self, request: shards_pb2.KvEventsRequest, context: Caller
    ) -> AsyncIterator[shards_pb2.KvDelivery]:
        await self._guard.authorise(context)
        async with (
            _refusals(context),
            aclosing(feed(lambda: self._source(request.shard), _subscribe, self._context.clock)) as items,
        ):
            async for item in items:
                yield self._delivery(request.shard, item)

    async def Telemetry(  # noqa: N802 - the name in the .proto
        self, request: shards_pb2.TelemetryRequest, context: Caller
    ) -> AsyncIterator[shards_pb2.TelemetrySample]:
        await self._guard.authorise(context)
        async with _refusals(context), aclosing(self._telemetry.samples(request.every, request.count)) as samples:
            async for sample in samples:
                yield sample

    # --- inside -------------------------------------------------------------------------------------------------------

    def _worker(self, shard: str) -> Worker:
        supervisor = self._supervisor()
        worker = supervisor.worker(shard) if supervisor is not None else None
        if worker is None:
            raise NotHereError(f"shard {shard!r} is not on this node; `llmgwctl replica list` shows where it is")
        return worker

    def _runner(self, shard: str) -> Runner:
        runner = self._worker(shard).runner
        if runner is None:
            raise NotNowError(f"shard {shard} is about to start or to end here; ask again in a moment")
        return runner

    async def _drain(self, shard: str, *, drained: bool) -> shards_pb2.DrainState:
        self._worker(shard).drain(drained=drained)
        details = await describe(self._context, self._runner(shard))
        requests = details.requests if details.HasField("requests") else None
        return shards_pb2.DrainState(shard=shard, drained=drained, requests=requests, connections=details.connections)

    def _source(self, shard: str) -> Source | None:
        """Where the shard's engine publishes now.

        Raises:
            NotHereError, NotNowError: it never will.
        """
        runner = self._worker(shard).runner
        saved = runner.ledger.saved if runner is not None else None
        if saved is None or saved.attempt is None or saved.process is None:
            return None
        if not saved.attempt.kv_events:
            raise NotNowError(
                f"the engine of shard {shard} does not publish KV-cache events: only vLLM and SGLang can, and when they are "
                "started with engines.kv_events = on, or for a model with routing.policy kv"
            )
        sockets = kv_sockets(self._context, saved.assignment, saved.attempt.id)
        return Source(saved.attempt.id, sockets.publish, sockets.replay, sockets.topic)

    def _delivery(self, shard: str, item: Item) -> shards_pb2.KvDelivery:
        match item:
            case Begun(source=source, number=number):
                wish = self._runner(shard).wish
                begun = shards_pb2.KvSource(
                    shard=shard, epoch=wish.epoch, attempt=source.attempt, engine=wish.engine, number=number
                )
                return shards_pb2.KvDelivery(source=begun)
            case Missing(first=first, last=last, slow=slow):
                return shards_pb2.KvDelivery(lost=shards_pb2.KvLost(first=first, last=last, slow_reader=slow))
            case Raw(seq=seq, topic=topic, payload=payload):
                return shards_pb2.KvDelivery(batch=shards_pb2.KvBatch(seq=seq, topic=topic, payload=payload))


def _subscribe(source: Source) -> Subscriber:
    return Subscriber(source.endpoint, source.replay, topic=source.topic)
