"""How each child shows that it is ready. A probe answers yes or no and never raises for a child that is not there yet."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp

from llmgw_base.net import Listen
from llmgw_ctl.up.layout import Layout
from llmgw_ctl.up.plan import CLIENT_SOCKET, Choices, local_url

_TIMEOUT = aiohttp.ClientTimeout(total=2)
_CONNECT_SECONDS = 2.0


class Probes:
    """Use as an async context manager."""

    def __init__(self, layout: Layout, choices: Choices) -> None:
        self._socket = layout.sockets / CLIENT_SOCKET
        self._token_file = layout.token
        self._admin, self._router, self._node = local_url(choices.admin), local_url(choices.router), choices.node
        self._agent = choices.agent
        self._coordinator_seen = False
        self._etcd: aiohttp.ClientSession | None = None
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._etcd = aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(self._socket)), timeout=_TIMEOUT)
        self._http = aiohttp.ClientSession(timeout=_TIMEOUT)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for session in (self._etcd, self._http):
            if session is not None:
                await session.close()

    async def etcd(self) -> bool:
        return bool(_value(await _get(self._etcd, "http://etcd/health"), "health") == "true")

    async def coordinator(self) -> bool:
        """Ready, and ours: it knows the token. A stranger on the same port is not asked again and again with a wrong one."""
        if await _get(self._http, f"{self._admin}/readyz") is None:
            return False
        self._coordinator_seen = await self._nodes() is not None
        return self._coordinator_seen

    async def router(self) -> bool:
        return await _get(self._http, f"{self._router}/health") is not None

    async def agent(self) -> bool:
        """It listens, and the coordinator sees its node alive; that alone could be what is left of an agent that was killed."""
        if not self._coordinator_seen or not await _listens(self._agent):
            return False
        nodes = _value(await self._nodes(), "nodes") or []
        return any(node.get("name") == self._node and node.get("alive") for node in nodes)

    async def _nodes(self) -> bytes | None:
        return await _get(self._http, f"{self._admin}/admin/v1/nodes", token=_read(self._token_file))

    async def routed_models(self) -> set[str]:
        """The models that the router has a replica for."""
        body = await _get(self._http, f"{self._router}/v1/models")
        return {model.get("id", "") for model in _value(body, "data") or []}


async def _get(session: aiohttp.ClientSession | None, url: str, *, token: str | None = None) -> bytes | None:
    """The body of a 2xx answer, else None."""
    assert session is not None, "use the probes in `async with`"
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        async with session.get(url, headers=headers) as response:
            body = await response.read()
            return body if response.ok else None
    except (aiohttp.ClientError, TimeoutError, OSError):
        return None


async def _listens(address: Listen) -> bool:
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(address.host, address.port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True


def _value(body: bytes | None, key: str) -> Any:
    try:
        return json.loads(body or b"{}").get(key)
    except (ValueError, AttributeError):
        return None


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
