"""What the service does: logs, quarantines, power caps, bandwidth tests."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import TypeVar

import grpc

from llmgw_agent.hardware.bandwidth.errors import BandwidthError, PortsBusyError, ProgramMissingError
from llmgw_agent.hardware.power import PowerCapError, PowerCapRangeError
from llmgw_agent.logs.ask import NothingKeptError, read_logs
from llmgw_agent.rpc.bandwidth import Bandwidth
from llmgw_agent.rpc.desk import Desk, NotLookedError, UnknownSubjectError
from llmgw_agent.rpc.guard import Caller, Guard
from llmgw_base.clock import Clock
from llmgw_base.config import ConfigError
from llmgw_base.etcd.errors import StoreError
from llmgw_proto import agent_pb2, agent_pb2_grpc
from llmgw_proto.records import BadRecordError

P = TypeVar("P")
#: The first that fits; each message is for people and says what helps.
_CODES: tuple[tuple[type[Exception], grpc.StatusCode], ...] = (
    (UnknownSubjectError, grpc.StatusCode.NOT_FOUND),
    (NothingKeptError, grpc.StatusCode.NOT_FOUND),
    (NotLookedError, grpc.StatusCode.UNAVAILABLE),
    (PowerCapRangeError, grpc.StatusCode.INVALID_ARGUMENT),
    (PowerCapError, grpc.StatusCode.FAILED_PRECONDITION),
    (PortsBusyError, grpc.StatusCode.FAILED_PRECONDITION),
    (ProgramMissingError, grpc.StatusCode.NOT_FOUND),
    (BandwidthError, grpc.StatusCode.ABORTED),
    (StoreError, grpc.StatusCode.UNAVAILABLE),
    (BadRecordError, grpc.StatusCode.UNAVAILABLE),
    (ConfigError, grpc.StatusCode.ABORTED),
    (ValueError, grpc.StatusCode.INVALID_ARGUMENT),
)


@asynccontextmanager
async def refusals(context: Caller) -> AsyncIterator[None]:
    """Turns named errors into answers."""
    try:
        yield
    except tuple(kind for kind, _ in _CODES) as error:
        code = next(code for kind, code in _CODES if isinstance(error, kind))
        await context.abort(code, str(error))


class AgentService(agent_pb2_grpc.AgentServicer):
    """``token`` gives None until the agent is in a cluster; nobody may call before. ``folder`` maps a shard to its logs."""

    def __init__(
        self,
        token: Callable[[], str | None],
        folder: Callable[[str], Path],
        clock: Clock,
        desk: Desk | None = None,
        bandwidth: Bandwidth | None = None,
    ) -> None:
        """
        Args:
            desk, bandwidth: without them these calls are not implemented.
        """
        self._guard, self._folder, self._clock = Guard(token), folder, clock
        self._desk, self._bandwidth = desk, bandwidth

    async def Logs(  # noqa: N802 - the name in the .proto
        self, request: agent_pb2.LogsRequest, context: Caller
    ) -> AsyncIterator[agent_pb2.LogsChunk]:
        await self._guard.authorise(context)
        folder = self._folder(request.shard)
        if not request.shard or not folder.is_dir():
            await context.abort(
                grpc.StatusCode.NOT_FOUND,
                f"shard {request.shard!r} has no log on this node; `llmgwctl replica list` shows where it is",
            )
        async with refusals(context), aclosing(read_logs(folder, request, self._clock)) as chunks:
            async for data in chunks:
                yield agent_pb2.LogsChunk(data=data)

    async def Hold(  # noqa: N802 - the name in the .proto
        self, request: agent_pb2.HoldRequest, context: Caller
    ) -> agent_pb2.Standing:
        desk = await self._needs(self._desk, context)
        async with refusals(context):
            subject, quarantine = desk.hold(request.subject, request.reason)
        return agent_pb2.Standing(subject=subject, quarantine=quarantine)

    async def Lift(  # noqa: N802 - the name in the .proto
        self, request: agent_pb2.LiftRequest, context: Caller
    ) -> agent_pb2.Standing:
        desk = await self._needs(self._desk, context)
        async with refusals(context):
            subject, quarantine = await desk.lift(request.subject)
        return agent_pb2.Standing(subject=subject, quarantine=quarantine)

    async def SetPower(  # noqa: N802 - the name in the .proto
        self, request: agent_pb2.SetPowerRequest, context: Caller
    ) -> agent_pb2.PowerLimit:
        desk = await self._needs(self._desk, context)
        async with refusals(context):
            if not math.isfinite(request.watts):
                raise ValueError(f"{request.watts} W is no power limit")
            gpu, watts = await desk.set_power(request.gpu, request.watts or None)
        return agent_pb2.PowerLimit(gpu=gpu, watts=watts)

    async def Bandwidth(  # noqa: N802 - the name in the .proto
        self, request: agent_pb2.BandwidthRequest, context: Caller
    ) -> agent_pb2.BandwidthResult:
        bandwidth = await self._needs(self._bandwidth, context)
        async with refusals(context):
            return await bandwidth.measure(request)

    async def ServeBandwidth(  # noqa: N802 - the name in the .proto
        self, request: agent_pb2.ServeBandwidthRequest, context: Caller
    ) -> AsyncIterator[agent_pb2.BandwidthServer]:
        bandwidth = await self._needs(self._bandwidth, context)
        async with refusals(context), aclosing(bandwidth.serve(request)) as answers:
            async for each in answers:
                yield each

    async def _needs(self, part: P | None, context: Caller) -> P:
        """The part, for callers that may ask it."""
        await self._guard.authorise(context)
        if part is None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this agent does not serve that")
        return part
