"""The service Weights: what is kept on this node, removed, verified, fetched ahead of time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection
from contextlib import aclosing, asynccontextmanager
from typing import Any

import grpc
from grpc import aio

from llmgw_agent.live import shards_here
from llmgw_agent.rpc.guard import Caller, Guard
from llmgw_agent.shard.context import Context
from llmgw_agent.stored_weights import weights_folder
from llmgw_agent.weights import (
    InUseError,
    ModelFacts,
    Progress,
    SourceInvalidError,
    SourceNotFoundError,
    Stored,
    WeightsError,
    WeightStore,
)
from llmgw_agent.weights.names import named
from llmgw_agent.weights.sources import shown
from llmgw_base.clock import Clock
from llmgw_proto import weights_pb2 as pb
from llmgw_proto.records import ShardState
from llmgw_proto.weights_pb2_grpc import WeightsServicer, add_WeightsServicer_to_server

TOLD_EVERY = 0.5
#: Nothing of such a shard runs; at its next start it fetches what is gone.
_IDLE = frozenset({ShardState.FAILED, ShardState.REJECTED, ShardState.STOPPED})
_CODES: tuple[tuple[type[WeightsError], grpc.StatusCode], ...] = (
    (SourceInvalidError, grpc.StatusCode.INVALID_ARGUMENT),
    (SourceNotFoundError, grpc.StatusCode.NOT_FOUND),
    (InUseError, grpc.StatusCode.FAILED_PRECONDITION),
    (WeightsError, grpc.StatusCode.ABORTED),
)


class _LeftError(WeightsError):
    """Ends the reading of files that nobody waits for any more."""


class WeightsService(WeightsServicer):
    def __init__(
        self,
        guard: Guard,
        store: WeightStore,
        folder: str,
        limit: int | None,
        idle: Callable[[], Collection[str]],
        clock: Clock,
    ) -> None:
        """
        Args:
            folder, limit: of the store, for people.
            idle: shards that are assigned to the node and run nothing at the moment.
        """
        self._guard, self._store, self._clock = guard, store, clock
        self._folder, self._limit, self._idle = folder, limit, idle

    async def List(self, request: pb.ListWeightsRequest, context: Caller) -> pb.WeightsList:  # noqa: N802 - the .proto's name
        await self._guard.authorise(context)
        async with _refusals(context):
            found = [_stored(each) for each in await self._store.list()]
            free = await self._store.free_bytes()
        return pb.WeightsList(weights=found, folder=self._folder, free_bytes=free, limit_bytes=self._limit or 0)

    async def Remove(self, request: pb.RemoveWeightsRequest, context: Caller) -> pb.RemovedWeights:  # noqa: N802 - as above
        await self._guard.authorise(context)
        answer = pb.RemovedWeights()
        async with _refusals(context):
            for each in named(await self._store.list(), request.name):
                answer.freed_bytes += await self._store.remove(each.key, idle=self._idle())
                answer.sources.append(shown(each.source))
        return answer

    async def Verify(  # noqa: N802 - as above
        self, request: pb.VerifyWeightsRequest, context: Caller
    ) -> AsyncIterator[pb.VerifyProgress]:
        await self._guard.authorise(context)
        async with _refusals(context):
            stored = await self._store.list()
            chosen = named(stored, request.name) if request.name else list(stored)
            async with aclosing(self._verify(chosen)) as steps:
                async for each in steps:
                    yield each

    async def _verify(self, chosen: list[Stored]) -> AsyncGenerator[pb.VerifyProgress, None]:
        total, done, left = sum(each.total_bytes for each in chosen), 0, False
        verified = pb.Verified()

        def read(count: int) -> None:
            nonlocal done
            done += count
            if left:
                raise _LeftError("whoever asked has left")

        for each in chosen:
            title = shown(each.source)
            task = asyncio.ensure_future(self._store.verify(each.key, read=read))
            try:
                async for _ in self._until(task):
                    yield pb.VerifyProgress(source=title, bytes_done=done, bytes_total=total)
            finally:
                left = not task.done()
                await asyncio.gather(task, return_exceptions=True)
            verified.files += each.files
            verified.wrong.extend(f"{title}: {path}" for path in task.result())
        yield pb.VerifyProgress(bytes_done=done, bytes_total=total, result=verified)

    async def Fetch(  # noqa: N802 - as above
        self, request: pb.FetchWeightsRequest, context: Caller
    ) -> AsyncIterator[pb.FetchProgress]:
        await self._guard.authorise(context)
        latest: list[Progress] = []

        def hear(progress: Progress) -> None:
            latest[:] = [progress]

        async with _refusals(context):
            task = asyncio.ensure_future(self._store.ensure(request.source, progress=hear))
            try:
                async for _ in self._until(task):
                    if latest and latest[0].phase != "ready":
                        yield _progress(latest[0])
                weights = task.result()
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            last = pb.FetchProgress(phase="ready", bytes_done=weights.total_bytes, bytes_total=weights.total_bytes)
            last.bytes_fetched = latest[0].bytes_fetched if latest else 0
            last.path = str(weights.path)
            if weights.facts is not None:
                last.facts.CopyFrom(_facts(weights.facts))
            yield last

    async def _until(self, task: asyncio.Future[Any]) -> AsyncIterator[None]:
        """Once in a while until the task is done."""
        while not task.done():
            timer = asyncio.ensure_future(self._clock.sleep(TOLD_EVERY))
            try:
                await asyncio.wait([task, timer], return_when=asyncio.FIRST_COMPLETED)
            finally:
                timer.cancel()
            if not task.done():
                yield


@asynccontextmanager
async def _refusals(context: Caller) -> AsyncIterator[None]:
    try:
        yield
    except WeightsError as error:
        await context.abort(next(code for kind, code in _CODES if isinstance(error, kind)), str(error))


def _stored(stored: Stored) -> pb.StoredWeights:
    found = pb.StoredWeights(
        source=shown(stored.source),
        key=stored.key,
        content=stored.content,
        bytes=stored.total_bytes,
        files=stored.files,
        path=str(stored.path),
        revision=stored.revision or "",
        fetched_at=stored.fetched_at,
        last_used_at=stored.last_used_at,
        used_by=stored.pinned_by,
    )
    if stored.facts is not None:
        found.facts.CopyFrom(_facts(stored.facts))
    return found


def _facts(facts: ModelFacts) -> pb.WeightsFacts:
    return pb.WeightsFacts(
        format=facts.format,
        architecture=facts.architecture,
        name=facts.name,
        parameters=facts.parameters,
        quantisation=facts.quantisation,
        dtype=facts.dtype,
        layers=facts.layers,
        heads=facts.heads,
        kv_heads=facts.kv_heads,
        context_length=facts.context_length,
        vocabulary=facts.vocabulary,
        experts=facts.experts,
        weights_bytes=facts.weights_bytes,
        kv_bytes_per_token=facts.kv_bytes_per_token,
    )


def _progress(progress: Progress) -> pb.FetchProgress:
    return pb.FetchProgress(
        phase=progress.phase,
        bytes_done=progress.bytes_done,
        bytes_total=progress.bytes_total,
        bytes_fetched=progress.bytes_fetched,
        bytes_per_second=progress.rate,
        place=progress.place,
        waits_for=progress.waits_for,
    )


def weights_service(context: Context, token: Callable[[], str | None]) -> Callable[[aio.Server], None]:
    """Adds the service to a server."""

    def idle() -> set[str]:
        return {each.shard for each in shards_here(context) if each.state in _IDLE}

    config = context.config
    service = WeightsService(
        Guard(token), context.weights, str(weights_folder(config)), config.weights.limit_bytes, idle, context.clock
    )

    def add(server: aio.Server) -> None:
        add_WeightsServicer_to_server(service, server)  # type: ignore[no-untyped-call]  # generated

    return add
