"""``/v1/realtime``: a websocket handshake is passed to an engine, and after it bytes go both ways untouched."""

from __future__ import annotations

from urllib.parse import parse_qs, quote

from llmgw_router.account.ledger import Settlement
from llmgw_router.api.routes import REALTIME, Family
from llmgw_router.client.connection import TUNNEL, ClientConnection
from llmgw_router.engine.connection import EngineConnection
from llmgw_router.errors import ApiError, ConnectError, EngineError, SilentError
from llmgw_router.policies.base import Hints
from llmgw_router.relay.core import Core
from llmgw_router.relay.lookup import find_group, no_replica
from llmgw_router.table.directory import ModelState
from llmgw_router.table.replica import Replica

_EARLY_LIMIT = 65_536
_KEY_PROTOCOL = b"openai-insecure-api-key."
_SWITCHING = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"


class Realtime:
    """One websocket. Both the client's and the engine's side write here; whichever leaves first takes the other along."""

    def __init__(self, core: Core, client: ClientConnection, state: ModelState, replica: Replica, request: bytes) -> None:
        self._core = core
        self._client = client
        self._state = state
        self._replica = replica
        self._request = request
        self._connection: EngineConnection | None = None
        self._early = b""
        self._open = False
        self._done = False
        self._sent_at = 0.0
        self._bytes_out = 0

    @classmethod
    def open(cls, core: Core, client: ClientConnection) -> ApiError | None:
        """Starts a tunnel for the client. Returns why that cannot be."""
        values = parse_qs(client.head.query.decode("latin-1"))
        name = values.get("model", [""])[0]
        if not name:
            return ApiError(400, "missing_model", "Name the model in the query: /v1/realtime?model=NAME.", param="model")
        try:
            group = find_group(core.directory.table, name, REALTIME)
        except ApiError as error:
            return error
        free = tuple(each for each in group.usable if not each.full)
        if not free:
            return no_replica(name)
        replica = group.model.policy.choose(free, Hints(session=client.head.session))
        values["model"] = [replica.spec.served_name or name]
        target = "&".join(f"{quote(key)}={quote(one, safe='/')}" for key, each in values.items() for one in each)
        tunnel = cls(core, client, group.model, replica, cls._handshake(client, replica, target.encode()))
        client.tunnel = tunnel
        client.state = TUNNEL
        replica.load += 1
        group.model.running += 1
        core.active.add(tunnel)
        core.spawn(tunnel._connect())
        return None

    @staticmethod
    def key_of(protocols: bytes) -> bytes:
        """Browsers cannot set headers on a websocket, so OpenAI's clients send the key as a subprotocol."""
        return next(
            (each[len(_KEY_PROTOCOL) :] for each in map(bytes.strip, protocols.split(b",")) if each.startswith(_KEY_PROTOCOL)),
            b"",
        )

    @staticmethod
    def _handshake(client: ClientConnection, replica: Replica, query: bytes) -> bytes:
        head = replica.head(REALTIME.raw_path)
        parts = [head.replace(b"POST /v1/realtime ", b"GET /v1/realtime?%b " % query, 1), client.head.passed]
        protocols = [
            each for each in map(bytes.strip, client.head.protocols.split(b",")) if each and not each.startswith(_KEY_PROTOCOL)
        ]
        if protocols:
            parts.append(b"Sec-WebSocket-Protocol: %b\r\n" % b", ".join(protocols))
        parts.append(b"X-Request-Id: %b\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n" % client.head.request_id)
        return b"".join(parts)

    async def _connect(self) -> None:
        try:
            connection = await self._core.pool.connect(self._replica)
        except ConnectError as error:
            self._core.failed(self._replica, error.code, decisive=True)
            self._fail(ApiError(error.status, error.code, f"{error}.", retry_after=1))
            return
        if self._done:
            connection.close()
            return
        self._connection = connection
        self._sent_at = self._core.now()
        connection.send(self, self._request, upgrade=True)

    # --- from the engine ----------------------------------------------------------------------------------------------

    def engine_data(self, connection: EngineConnection, data: bytes, complete: bool) -> None:
        if not self._open:
            if connection.status != 101:
                status = connection.status if 400 <= connection.status < 500 else 502
                self._fail(
                    ApiError(status, "realtime_refused", f"The engine refused the websocket with status {connection.status}.")
                )
                return
            self._open = True
            self._core.succeeded(self._replica)
            client = self._client
            self._client.write(
                b"".join([_SWITCHING, *connection.head, b"X-Request-Id: %b\r\n\r\n" % client.head.request_id, data])
            )
            if self._early:
                connection.transport.write(self._early)
                self._early = b""
            client.transport.resume_reading()
            return
        self._bytes_out += len(data)
        self._replica.last_byte = self._core.now()
        self._client.write(data)

    def engine_lost(self, connection: EngineConnection, error: EngineError) -> None:
        if self._open:
            self._settle(101)
            self._client.transport.close()
        else:
            self._core.failed(self._replica, error.code, decisive=False)
            self._fail(ApiError(error.status, error.code, f"{error}."))

    def engine_writable(self, writable: bool) -> None:
        transport = self._client.transport
        if writable:
            transport.resume_reading()
        else:
            transport.pause_reading()

    # --- from the client ----------------------------------------------------------------------------------------------

    def client_data(self, data: bytes) -> None:
        if self._open and self._connection is not None:
            self._connection.transport.write(data)
            return
        self._early += data
        if len(self._early) > _EARLY_LIMIT:
            self._client.transport.pause_reading()

    def client_gone(self) -> None:
        self._settle(101 if self._open else 499)

    def client_writable(self, writable: bool) -> None:
        if self._connection is not None and not self._connection.closing:
            transport = self._connection.transport
            if writable:
                transport.resume_reading()
            else:
                transport.pause_reading()

    # --- limits and the end -------------------------------------------------------------------------------------------

    def check(self, now: float) -> None:
        limit = self._core.config.timeouts.first_byte
        if self._connection is not None and not self._open and now - self._sent_at > limit:
            error = SilentError(f"engine {self._replica.id} did not answer the handshake in {limit:g} s")
            self._core.failed(self._replica, error.code, decisive=False)
            self._fail(ApiError(error.status, error.code, f"{error}."))

    def cut(self) -> None:
        if not self._open:
            self._fail(ApiError(503, "router_stopping", "This router is being stopped; try again.", retry_after=1))
        elif not self._done:
            self._settle(101, "router_stopping")
            self._client.transport.close()

    def _fail(self, error: ApiError) -> None:
        if self._done:
            return
        client = self._client
        client.keep_alive = False
        self._settle(error.status, error.code)
        client.error(error, Family.OPENAI)
        client.finished()

    def _settle(self, status: int, error: str = "") -> None:
        if self._done:
            return
        self._done = True
        client, replica = self._client, self._replica
        client.tunnel = None
        if self._connection is not None:
            self._connection.close()
        self._core.active.discard(self)
        self._state.running -= 1
        replica.load -= 1
        if replica.limit is not None:
            self._core.freed(replica)
        self._core.ledger.settle(
            Settlement(
                status,
                "GET",
                REALTIME.path,
                REALTIME.path,
                client.peer,
                client.head.request_id.decode(),
                self._core.now() - client.began,
                self._state,
                replica.id,
                client.key_name,
                bytes_out=self._bytes_out,
                error=error,
            )
        )
