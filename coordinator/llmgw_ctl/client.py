"""The admin API's client. Every failure is one of :mod:`llmgw_ctl.errors`, with URL, cause and remedy."""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self, cast
from urllib.parse import quote

import aiohttp
from yarl import URL

from llmgw_ctl.api import ModelView, NodeView, ReplicaView, StatusView
from llmgw_ctl.connection import Target
from llmgw_ctl.errors import BadInputError, CtlError, NotFoundError, RefusedError, UnreachableError

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 30.0
#: Beyond the time of a bandwidth test: both nodes get ready, or find out why they cannot.
TEST_SLACK = 120.0


class AdminClient:
    """Use as an async context manager. Servers are tried in turn; the first that can be connected to is kept."""

    def __init__(self, target: Target, *, answer_seconds: float = ANSWER_SECONDS) -> None:
        self.target = target
        self._servers = list(target.servers)
        self._timeout = aiohttp.ClientTimeout(total=answer_seconds, sock_connect=min(CONNECT_SECONDS, answer_seconds))
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        headers = {"Authorization": f"Bearer {self.target.token}"} if self.target.token else {}
        connector = aiohttp.TCPConnector(ssl=_tls(self.target))
        self._session = aiohttp.ClientSession(headers=headers, connector=connector)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def status(self) -> StatusView:
        return cast(StatusView, await self._json("GET", "status"))

    async def nodes(self) -> list[NodeView]:
        return cast(list[NodeView], await self._list("nodes", "nodes"))

    async def node(self, name: str) -> NodeView:
        return cast(NodeView, await self._json("GET", f"nodes/{_part(name)}"))

    async def gpu(self, node: str, gpu: str, word: str, body: dict[str, Any]) -> dict[str, Any]:
        """``word`` is hold, lift or power."""
        return await self._json("POST", f"nodes/{_part(node)}/gpus/{_part(gpu)}/{word}", body)

    async def bandwidth(self, node: str, peer: str, *, force: bool, seconds: float) -> dict[str, Any]:
        body = {"peer": peer, "force": force, "seconds": seconds}
        timeout = aiohttp.ClientTimeout(total=seconds + TEST_SLACK, sock_connect=self._timeout.sock_connect)
        return (await self._answer("POST", f"nodes/{_part(node)}/bandwidth", body, timeout))[1]

    async def fabrics(self) -> list[dict[str, Any]]:
        return await self._list("fabrics", "fabrics")

    async def fabric(self, subnet: str) -> dict[str, Any]:
        return await self._json("GET", f"fabrics/{_part(subnet)}")

    async def weights(self) -> dict[str, Any]:
        found = await self._json("GET", "weights")
        return {"nodes": found.get("nodes", []), "unreachable": found.get("unreachable", [])}

    async def node_weights(self, node: str) -> dict[str, Any]:
        return await self._json("GET", f"nodes/{_part(node)}/weights")

    async def remove_weights(self, node: str, key: str) -> dict[str, Any]:
        return await self._json("DELETE", f"nodes/{_part(node)}/weights/{_part(key)}")

    async def weights_steps(self, node: str, word: str, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """``word`` is verify or fetch: how far it is, until it is done or the caller leaves."""
        async for step in self._steps(f"nodes/{_part(node)}/weights/{word}", body):
            yield step

    async def engines(self, node: str | None = None) -> dict[str, Any]:
        """What nodes have installed, or one of them."""
        if node is not None:
            return {"nodes": [await self._json("GET", f"nodes/{_part(node)}/engines")], "unreachable": []}
        found = await self._json("GET", "engines")
        return {"nodes": found.get("nodes", []), "unreachable": found.get("unreachable", [])}

    async def engine_settings(self) -> list[dict[str, Any]]:
        return await self._list("engines?nodes=0", "settings")

    async def set_engine(self, engine: str, body: dict[str, Any]) -> dict[str, Any]:
        return await self._json("POST", f"engines/{_part(engine)}/set", body)

    async def unset_engine(self, engine: str, body: dict[str, Any]) -> dict[str, Any]:
        return await self._json("POST", f"engines/{_part(engine)}/unset", body)

    async def install_engine(
        self, node: str, engine: str, version: str | None, *, reinstall: bool
    ) -> AsyncIterator[dict[str, Any]]:
        """How far it is, until it is done or the caller leaves; the last step has the result."""
        body = {"version": version, "reinstall": reinstall}
        async for step in self._steps(f"nodes/{_part(node)}/engines/{_part(engine)}/install", body):
            yield step

    async def remove_engine(self, node: str, engine: str, version: str | None) -> dict[str, Any]:
        query = "" if version is None else f"?version={quote(version, safe='')}"
        return await self._json("DELETE", f"nodes/{_part(node)}/engines/{_part(engine)}{query}")

    async def _steps(self, path: str, body: dict[str, Any] | None, method: str = "POST") -> AsyncIterator[dict[str, Any]]:
        """The lines of an answer that goes on for as long as the work does."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._timeout.sock_connect)
        server, response = await self._connect(method, path, body, timeout)
        try:
            async with response:
                if response.status >= 400:
                    raise self._refusal(server, response, await response.read())
                async for line in response.content:
                    step = json.loads(line)
                    if "error" in step:
                        raise _late_refusal(*_reported(line), str(step["error"].get("code", "")))
                    yield step
        except (aiohttp.ClientError, TimeoutError) as error:
            raise UnreachableError(f"the answer of {server} broke off: {_cause(error)}", "ask again") from error
        except (ValueError, AttributeError, TypeError) as error:
            raise self._stranger(server) from error

    async def models(self) -> list[ModelView]:
        return cast(list[ModelView], await self._list("models", "models"))

    async def model(self, name: str) -> ModelView:
        return cast(ModelView, await self._json("GET", f"models/{_part(name)}"))

    async def apply(self, spec: dict[str, Any]) -> tuple[ModelView, bool]:
        """Returns the model and whether it is new."""
        status, body = await self._answer("PUT", f"models/{_part(str(spec['name']))}", body=spec)
        return cast(ModelView, body), status == 201

    async def scale(self, name: str, replicas: int) -> ModelView:
        return cast(ModelView, await self._json("POST", f"models/{_part(name)}/scale", body={"replicas": replicas}))

    async def remove(self, name: str) -> list[str]:
        """Returns the ids of the replicas that are now to stop."""
        return list((await self._json("DELETE", f"models/{_part(name)}")).get("replicas", []))

    async def replicas(self, model: str | None = None) -> list[ReplicaView]:
        path = "replicas" if model is None else f"replicas?model={quote(model, safe='')}"
        return cast(list[ReplicaView], await self._list(path, "replicas"))

    async def replica(self, replica_id: str) -> ReplicaView:
        return cast(ReplicaView, await self._json("GET", f"replicas/{_part(replica_id)}"))

    async def replica_details(self, replica_id: str, rank: int = 0) -> dict[str, Any]:
        """All that the agent knows of one of its shards."""
        return await self._json("GET", f"replicas/{_part(replica_id)}/details?rank={rank}")

    async def drain_replica(self, replica_id: str, *, drained: bool) -> dict[str, Any]:
        return await self._json("POST", f"replicas/{_part(replica_id)}/{'drain' if drained else 'undrain'}", {})

    async def restart_replica(self, replica_id: str, drain_seconds: float | None) -> dict[str, Any]:
        return await self._json("POST", f"replicas/{_part(replica_id)}/restart", {"drain_seconds": drain_seconds})

    async def telemetry(self, node: str, *, every: float, count: int) -> AsyncIterator[dict[str, Any]]:
        """Figures of a node's GPUs and replicas every some seconds; ``count`` 0: until the caller leaves."""
        async for sample in self._steps(f"nodes/{_part(node)}/telemetry?every={every:g}&count={count}", None, "GET"):
            yield sample

    async def logs(self, replica_id: str, *, tail: int, follow: bool, **chosen: str | float) -> AsyncIterator[bytes]:
        """The log, oldest line first; with ``follow``, also what comes, until the replica's log ends or the caller leaves.

        ``chosen``: rank, since (Unix time), grep, file.
        """
        path = f"replicas/{_part(replica_id)}/logs?tail={tail}" + ("&follow=1" if follow else "")
        path += "".join(f"&{name}={quote(str(value), safe='')}" for name, value in chosen.items())
        total = None if follow else self._timeout.total
        timeout = aiohttp.ClientTimeout(total=total, sock_connect=self._timeout.sock_connect)
        server, response = await self._connect("GET", path, None, timeout)
        try:
            async with response:
                if response.status >= 400:
                    raise self._refusal(server, response, await response.read())
                async for chunk in response.content.iter_any():
                    yield chunk
        except (aiohttp.ClientError, TimeoutError) as error:
            raise UnreachableError(f"the log stream from {server} broke: {_cause(error)}", "ask again") from error

    async def _list(self, path: str, key: str) -> list[Any]:
        found = (await self._json("GET", path)).get(key)
        if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
            raise self._stranger(self._servers[0])
        return found

    async def _json(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        return (await self._answer(method, path, body))[1]

    async def _answer(
        self, method: str, path: str, body: Any = None, timeout: aiohttp.ClientTimeout | None = None
    ) -> tuple[int, dict[str, Any]]:
        server, response = await self._connect(method, path, body, timeout or self._timeout)
        try:
            async with response:
                raw = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise UnreachableError(
                f"the answer of {server} broke off: {_cause(error)}", "look at the coordinator's log"
            ) from error
        if response.status >= 400:
            raise self._refusal(server, response, raw)
        try:
            answer = json.loads(raw)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise self._stranger(server)
        return response.status, answer

    async def _connect(
        self, method: str, path: str, body: Any, timeout: aiohttp.ClientTimeout
    ) -> tuple[str, aiohttp.ClientResponse]:
        assert self._session is not None, "use the client in `async with`"
        failures: list[tuple[str, Exception]] = []
        for server in list(self._servers):
            url = URL(f"{server}/admin/v1/{path}", encoded=True)
            try:
                response = await self._session.request(method, url, json=body, timeout=timeout)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                failures.append((server, error))
                if isinstance(error, aiohttp.ClientConnectorError):
                    continue
                break
            self._servers.remove(server)
            self._servers.insert(0, server)
            return server, response
        raise self._unreachable(failures)

    def _stranger(self, server: str) -> CtlError:
        return UnreachableError(
            f"{server} does not answer as a coordinator's admin API",
            f"check the address ({self.target.server_origin}); the admin API's default port is 7080",
        )

    def _unreachable(self, failures: list[tuple[str, Exception]]) -> CtlError:
        text = "; ".join(f"{server}: {_cause(error)}" for server, error in failures)
        error = failures[-1][1]
        if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientConnectorSSLError):
            remedy = "name the CA's file as ca: in the settings file, or use http:// if the coordinator serves plain HTTP"
        elif self.target.server_origin == "the default":
            remedy = "start one with `llmgwctl up`, or say where one is with --server URL or LLMGW_SERVER"
        else:
            remedy = f"start it, or correct the address (from {self.target.server_origin})"
        return UnreachableError(f"cannot reach the coordinator at {text}", remedy)

    def _refusal(self, server: str, response: aiohttp.ClientResponse, raw: bytes) -> CtlError:
        message, remedy = _reported(raw)
        status = response.status
        if status in (401, 403):
            return self._unauthorized(server, status)
        if not message:
            message = f"{server} answered {status} {response.reason or ''}".rstrip()
            remedy = f"check the address ({self.target.server_origin}): is the coordinator's admin API there?"
        if status == 404:
            return NotFoundError(message, remedy)
        if status in (400, 413, 415, 422):
            return BadInputError(message, remedy)
        if status in (502, 503, 504):
            return UnreachableError(message, remedy)
        return RefusedError(message, remedy)

    def _unauthorized(self, server: str, status: int) -> CtlError:
        if self.target.token is None:
            return BadInputError(
                f"{server} wants a token and none was given", "name the token's file with --token-file or LLMGW_TOKEN_FILE"
            )
        return BadInputError(
            f"{server} does not accept the token from {self.target.token_origin} ({status})",
            "name the token file of that coordinator with --token-file or LLMGW_TOKEN_FILE",
        )


def _late_refusal(message: str, remedy: str, code: str) -> CtlError:
    """A refusal after the answer has begun has no status."""
    if code.endswith("_not_found"):
        return NotFoundError(message, remedy)
    return UnreachableError(message, remedy) if code == "agent_unreachable" else RefusedError(message, remedy)


def _part(name: str) -> str:
    """One segment of a path, whatever is in the name; a lone dot would vanish from the path otherwise."""
    return "%2E" * len(name) if name in (".", "..") else quote(name, safe="")


def _reported(raw: bytes) -> tuple[str, str]:
    """Message and remedy of an error body; empty when it is not one."""
    try:
        error = json.loads(raw)["error"]
        return str(error["message"]), str(error.get("remedy") or "")
    except (ValueError, KeyError, TypeError):
        return "", ""


def _cause(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"its certificate is not accepted ({error.certificate_error})"
    if isinstance(error, aiohttp.ClientConnectorError):
        return _system_cause(error.os_error)
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "it closed the connection"
    return str(error) or type(error).__name__


def _system_cause(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason or error}"
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    return (error.strerror or str(error)).lower()


def _tls(target: Target) -> ssl.SSLContext | bool:
    if target.ca is None:
        return True
    try:
        return ssl.create_default_context(cafile=str(target.ca))
    except (OSError, ssl.SSLError) as error:
        raise BadInputError(
            f"ca file {target.ca} cannot be used: {error}", "name a PEM file as ca: in the settings file"
        ) from error
