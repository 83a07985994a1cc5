"""Who may call: whoever has the agent's token. All services of the agent's port ask the same guard."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Any, TypeAlias

import grpc
from grpc import aio

#: Who asks, whatever the request and the answer are. The class is generic only for type checkers.
Caller: TypeAlias = "aio.ServicerContext[Any, Any]"


class Guard:
    """``token`` gives None until the agent is in a cluster; nobody may call before."""

    def __init__(self, token: Callable[[], str | None]) -> None:
        self._token = token

    async def authorise(self, context: Caller) -> None:
        """Ends the call of whoever may not make it."""
        token = self._token()
        if token is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the agent has not found its cluster in etcd yet; try again soon")
        metadata = dict(context.invocation_metadata() or ())
        given = metadata.get("authorization", "")
        given = given.decode(errors="replace") if isinstance(given, bytes) else given
        if not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "wrong agent token")
