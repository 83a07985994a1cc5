"""An agent's gRPC service as far as the coordinator calls it: it has logs, refuses, stays silent or breaks off."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from grpc import StatusCode, aio

from llmgw_proto.agent_pb2 import LogsChunk, LogsRequest
from llmgw_proto.agent_pb2_grpc import AgentServicer, add_AgentServicer_to_server


class LogAgent(AgentServicer):
    """``lines`` is the log; with follow, ``more`` brings further ones."""

    def __init__(self, token: str) -> None:
        self._token = token
        self.lines: list[str] = []
        self.more: asyncio.Queue[str] = asyncio.Queue()
        self.break_after_first = False
        self.refusal = ""
        """What is said to requests that make no sense; if empty all do."""
        self.requests: list[LogsRequest] = []
        self.cancelled = asyncio.Event()
        self.address = ""

    async def Logs(self, request: LogsRequest, context: Any) -> AsyncIterator[LogsChunk]:  # noqa: N802 - gRPC's name
        self.requests.append(request)
        if dict(context.invocation_metadata()).get("authorization") != f"Bearer {self._token}":
            await context.abort(StatusCode.UNAUTHENTICATED, "the token is wrong")
        if not request.shard.endswith(".0"):
            await context.abort(StatusCode.NOT_FOUND, "no such shard")
        if self.refusal:
            await context.abort(StatusCode.INVALID_ARGUMENT, self.refusal)
        try:
            for line in self.lines[-request.tail :]:
                yield LogsChunk(data=line.encode())
                if self.break_after_first:
                    await context.abort(StatusCode.INTERNAL, "the file vanished")
            while request.follow:
                yield LogsChunk(data=(await self.more.get()).encode())
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


@contextlib.asynccontextmanager
async def log_agent(token: str) -> AsyncIterator[LogAgent]:
    agent = LogAgent(token)
    server = aio.server()
    add_AgentServicer_to_server(agent, server)  # type: ignore[no-untyped-call]  # generated
    agent.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield agent
    finally:
        await server.stop(None)
