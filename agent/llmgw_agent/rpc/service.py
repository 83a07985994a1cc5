"""What the service does: logs."""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc
from grpc import aio  # type: ignore[attr-defined]  # grpc's own annotations leave out its asyncio half

from llmgw_agent.logs.tail import tail
from llmgw_base.clock import Clock
from llmgw_proto import agent_pb2, agent_pb2_grpc


class AgentService(agent_pb2_grpc.AgentServicer):
    """``token`` gives None until the agent is in a cluster; nobody may call before. ``folder`` maps a shard to its logs."""

    def __init__(self, token: Callable[[], str | None], folder: Callable[[str], Path], clock: Clock) -> None:
        self._token, self._folder, self._clock = token, folder, clock

    async def Logs(  # noqa: N802 - the name in the .proto
        self, request: agent_pb2.LogsRequest, context: aio.ServicerContext
    ) -> AsyncIterator[agent_pb2.LogsChunk]:
        await self._authorise(context)
        folder = self._folder(request.shard)
        if not request.shard or not folder.is_dir():
            await context.abort(
                grpc.StatusCode.NOT_FOUND,
                f"shard {request.shard!r} has no log on this node; `llmgwctl replica list` shows where it is",
            )
        async for data in tail(folder, request.tail, follow=request.follow, clock=self._clock):
            yield agent_pb2.LogsChunk(data=data)

    async def _authorise(self, context: aio.ServicerContext) -> None:
        token = self._token()
        if token is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the agent has not found its cluster in etcd yet; try again soon")
        metadata = dict(context.invocation_metadata() or ())
        given = metadata.get("authorization", "")
        given = given.decode(errors="replace") if isinstance(given, bytes) else given
        if not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "wrong agent token")
