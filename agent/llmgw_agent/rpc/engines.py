"""The service Engines: what is installed on this node, installed ahead of time or again, removed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
from grpc import aio

from llmgw_agent.engines.llamacpp import LlamaCpp
from llmgw_agent.errors import AttemptError, RejectedError
from llmgw_agent.install.environments import Environment
from llmgw_agent.install.errors import EngineInUseError, UnknownEngineError
from llmgw_agent.install.listing import Listed, describe, listing
from llmgw_agent.install.progress import Step
from llmgw_agent.rpc.guard import Caller, Guard
from llmgw_agent.shard.context import Context
from llmgw_proto import engines_pb2 as pb
from llmgw_proto.engines_pb2_grpc import EnginesServicer, add_EnginesServicer_to_server

TOLD_EVERY = 0.5
_CODES: tuple[tuple[type[Exception], grpc.StatusCode], ...] = (
    (UnknownEngineError, grpc.StatusCode.NOT_FOUND),
    (EngineInUseError, grpc.StatusCode.FAILED_PRECONDITION),
    (RejectedError, grpc.StatusCode.ABORTED),
    (AttemptError, grpc.StatusCode.ABORTED),
)


class EnginesService(EnginesServicer):
    def __init__(self, guard: Guard, context: Context) -> None:
        self._guard, self._context = guard, context

    async def List(self, request: pb.ListEnginesRequest, context: Caller) -> pb.EngineList:  # noqa: N802 - the .proto's name
        await self._guard.authorise(context)
        found = await asyncio.to_thread(self._all)
        return pb.EngineList(engines=found, folder=str(self._context.installer.environments.root))

    def _all(self) -> list[pb.NodeEngine]:
        installer = self._context.installer
        found = [_message(each) for each in listing(installer)]
        driver = self._context.drivers.get("llamacpp")
        host = driver.locate() if isinstance(driver, LlamaCpp) else None
        if isinstance(driver, LlamaCpp) and host is not None:
            usual = driver.explicit or installer.settings.default("llamacpp") is None
            for each in found:
                each.default = each.default and not (usual and each.engine == "llamacpp")
            # Not the agent's: found on the host, and used if nothing else is set.
            found.append(
                pb.NodeEngine(engine="llamacpp", version=host.version, state="host", detail=host.detail, default=usual)
            )
        return found

    async def Install(  # noqa: N802 - as above
        self, request: pb.InstallEngineRequest, context: Caller
    ) -> AsyncIterator[pb.EngineProgress]:
        await self._guard.authorise(context)
        steps: asyncio.Queue[Step] = asyncio.Queue()
        installer, clock = self._context.installer, self._context.clock
        await installer.settings.ready(request.engine)
        async with _refusals(context):
            task = asyncio.ensure_future(
                installer.install(request.engine, request.version or None, steps.put_nowait, again=request.reinstall)
            )
            try:
                phase, told = None, float("-inf")
                while (step := await _next(steps, task)) is not None:
                    if step.phase != phase or clock.monotonic() - told >= TOLD_EVERY:
                        phase, told = step.phase, clock.monotonic()
                        yield pb.EngineProgress(fraction=step.fraction, phase=step.phase, text=step.text)
                result = await asyncio.to_thread(self._describe, task.result())
            finally:
                # The installation itself goes on, see Installer.
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            yield pb.EngineProgress(fraction=1, phase="installed", result=result)

    def _describe(self, environment: Environment) -> pb.NodeEngine:
        note, settings = environment.note, self._context.installer.settings
        listed = describe(environment, [], default=settings.default(note.engine) == note.version)
        return _message(listed)

    async def Remove(self, request: pb.RemoveEngineRequest, context: Caller) -> pb.RemovedEngines:  # noqa: N802 - as above
        await self._guard.authorise(context)
        async with _refusals(context):
            versions, freed = await self._context.installer.remove(request.engine, request.version or None)
        return pb.RemovedEngines(versions=versions, freed_bytes=freed)


async def _next(steps: asyncio.Queue[Step], task: asyncio.Future[Environment]) -> Step | None:
    """The next step, or None when the task is done and all steps were taken."""
    waiting = asyncio.ensure_future(steps.get())
    both: set[asyncio.Future[Any]] = {waiting, task}
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        return waiting.result() if waiting.done() else None
    finally:
        waiting.cancel()


@asynccontextmanager
async def _refusals(context: Caller) -> AsyncIterator[None]:
    """Turns named errors into answers."""
    try:
        yield
    except tuple(kind for kind, _ in _CODES) as error:
        await context.abort(next(code for kind, code in _CODES if isinstance(error, kind)), str(error))


def _message(listed: Listed) -> pb.NodeEngine:
    return pb.NodeEngine(
        engine=listed.engine,
        version=listed.version,
        state=listed.state,
        detail=listed.detail,
        path=listed.path,
        bytes=listed.size,
        used_by=listed.used_by,
        lock_sha256=listed.lock,
        default=listed.default,
        origin=listed.origin,
        installed_at=listed.installed_at,
        last_used_at=listed.used_at,
    )


def engines_service(context: Context, token: Callable[[], str | None]) -> Callable[[aio.Server], None]:
    """Adds the service to a server."""
    service = EnginesService(Guard(token), context)

    def add(server: aio.Server) -> None:
        add_EnginesServicer_to_server(service, server)  # type: ignore[no-untyped-call]  # generated

    return add
