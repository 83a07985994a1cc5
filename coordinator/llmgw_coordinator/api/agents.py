"""Calling agents' gRPC services."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import grpc
from grpc import aio

from llmgw_base.etcd.timers import done_within, reap
from llmgw_base.secrets import agent_token
from llmgw_coordinator.api.context import Context
from llmgw_coordinator.api.problems import ApiError, not_found
from llmgw_proto.agent_pb2_grpc import AgentStub

#: Seconds until an agent that does not accept the connection counts as unreachable.
CONNECT_LIMIT = 3.0
_OPTIONS = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]


@dataclass(frozen=True, slots=True)
class Line:
    """A connection to one agent. ``stub`` has its calls, ``channel`` is for its other services; ``metadata`` goes with each.

    ``gone``: why nothing more is to be expected of the agent; None while its node is alive. A host without power, or a frozen
    agent, leaves connections as they are.
    """

    stub: Any
    metadata: tuple[tuple[str, str], ...]
    channel: aio.Channel
    gone: Callable[[], ApiError | None]


class Agents:
    def __init__(self, context: Context, credentials: grpc.ChannelCredentials | None) -> None:
        """
        Args:
            credentials: for mutual TLS; None: plaintext.
        """
        self._context = context
        self._credentials = credentials

    @contextlib.asynccontextmanager
    async def line(self, node: str) -> AsyncIterator[Line]:
        """Leaving the block ends whatever call goes on.

        Raises:
            ApiError: 404, there is no such node; 502, its agent cannot be reached.
        """
        view = self._context.facts().view
        if node not in view.nodes:
            raise not_found("node", node, see="node list")
        alive = view.alive.get(node)
        if alive is None or view.cluster is None:
            raise unreachable(node, "the agent is not alive")
        address = alive.record.grpc_address
        if self._credentials is None:
            channel = aio.insecure_channel(address, _OPTIONS)
        else:
            channel = aio.secure_channel(address, self._credentials, _OPTIONS)
        try:
            connecting = asyncio.ensure_future(channel.channel_ready())
            try:
                if not await done_within(self._context.clock, connecting, CONNECT_LIMIT):
                    raise unreachable(node, f"no connection to {address} within {CONNECT_LIMIT:g} s")
            finally:
                await reap(connecting)
            token = agent_token(view.cluster.engine_secret, node)
            stub: Any = AgentStub(channel)  # type: ignore[no-untyped-call]  # generated
            yield Line(stub, (("authorization", f"Bearer {token}"),), channel, lambda: self._gone(node))
        finally:
            await channel.close()

    def _gone(self, node: str) -> ApiError | None:
        return None if node in self._context.facts().view.alive else unreachable(node, "the agent is not alive any more")


def unreachable(node: str, cause: str) -> ApiError:
    return ApiError(
        502,
        "agent_unreachable",
        f"the agent of node {node} cannot be asked: {cause}",
        f"see whether llmgw-agent runs on {node} and its gRPC port is open to this coordinator; its log is on the node",
    )
