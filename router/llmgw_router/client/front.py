"""What a request asks for: finds its route, checks its key, and hands it on. Shared by all client connections of a worker."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable

from llmgw_router.account.ledger import Settlement
from llmgw_router.admission.keys import Keys
from llmgw_router.admission.queue import BY_NAME, Priority
from llmgw_router.api import models, multipart
from llmgw_router.api import peek as body_peek
from llmgw_router.api.cors import ALLOW, Cors
from llmgw_router.api.routes import HANDED_OVER, LOCAL, MODELS, REALTIME, RELAYED, Family
from llmgw_router.client.connection import ClientConnection, too_large
from llmgw_router.client.realtime import Realtime
from llmgw_router.config import RouterConfig
from llmgw_router.errors import ApiError
from llmgw_router.http import render
from llmgw_router.ops.handover import Handover
from llmgw_router.ops.health import Health
from llmgw_router.relay.core import Core
from llmgw_router.relay.exchange import Exchange

_RESERVE_FROM = 65_536


class Front:
    def __init__(
        self,
        config: RouterConfig,
        core: Core,
        keys: Keys | None,
        health: Health,
        handover: Handover,
        *,
        connections: int,
        started: int,
    ) -> None:
        self.limits = config.limits
        self.loop: asyncio.AbstractEventLoop = core.loop
        self.now: Callable[[], float] = core.now
        self.cors = Cors(config.cors.origins)
        self.session_header = config.session_header.lower().encode()
        self.keys = keys
        self.closing = False
        """Answers are the last ones on their connections."""
        self.open: set[ClientConnection] = set()
        self._config = config
        self._core = core
        self._health = health
        self._handover = handover
        self._started = started
        self._connections = connections
        self._buffered = 0
        self._per_address: dict[str, int] = {}
        self._ids = itertools.count(secrets.randbelow(2**32))
        self._id_prefix = b"req-" + secrets.token_hex(6).encode()

    def protocol(self) -> ClientConnection:
        return ClientConnection(self)

    def new_id(self) -> bytes:
        return b"%b%08x" % (self._id_prefix, next(self._ids) & 0xFFFFFFFF)

    # --- connections --------------------------------------------------------------------------------------------------

    def joined(self, connection: ClientConnection) -> ApiError | None:
        """A client has connected. Returns why it cannot stay."""
        self.open.add(connection)
        here = self._per_address[connection.peer] = self._per_address.get(connection.peer, 0) + 1
        most = self.limits.connections_per_address
        if len(self.open) > self._connections:
            self._core.metrics.refused.add(("connections",))
            return ApiError(503, "too_many_connections", "This router has as many connections as it can take.", retry_after=1)
        if most is not None and here > most:
            self._core.metrics.refused.add(("connections_per_address",))
            return ApiError(429, "too_many_connections", f"Your address has {most} connections already.", retry_after=1)
        return None

    def left(self, connection: ClientConnection) -> None:
        if connection in self.open:
            self.open.discard(connection)
            count = self._per_address.get(connection.peer, 0) - 1
            if count > 0:
                self._per_address[connection.peer] = count
            else:
                self._per_address.pop(connection.peer, None)

    def sweep(self) -> None:
        now = self.now()
        for connection in list(self.open):
            connection.check(now)

    def close_idle(self) -> None:
        for connection in list(self.open):
            if connection.idle:
                connection.transport.close()

    # --- memory -------------------------------------------------------------------------------------------------------

    def reserve(self, connection: ClientConnection, size: int) -> ApiError | None:
        """Sets ``size`` bytes aside for a body; ``size`` replaces what was set aside before."""
        if size < _RESERVE_FROM:
            return None
        if self._buffered + size - connection.reserved > self.limits.buffered_bytes:
            return ApiError(
                503, "out_of_buffers", "Too many large requests are being received; try again shortly.", retry_after=1
            )
        self._buffered += size - connection.reserved
        connection.reserved = size
        return None

    def unreserve(self, connection: ClientConnection) -> None:
        self._buffered -= connection.reserved
        connection.reserved = 0

    # --- requests -----------------------------------------------------------------------------------------------------

    def head(self, connection: ClientConnection) -> ApiError | None:
        """The head is in. Returns why the request cannot be served, as far as the head tells."""
        head = connection.head
        path = head.path
        route = connection.route = RELAYED.get(path) or RELAYED.get(path.rstrip(b"/"))
        if self.keys is not None and head.method != b"OPTIONS":
            refusal = self._authenticate(connection, self.keys)
            if refusal is not None:
                return refusal
        if route is not None and head.method == b"POST":
            if head.length > self.limits.body_bytes:
                return too_large(self.limits.body_bytes)
            return None
        return self._other(connection)

    def _other(self, connection: ClientConnection) -> ApiError | None:
        """All that is not a POST to a relayed path."""
        head = connection.head
        path, method = head.path, head.method
        known = connection.route is not None or self._is_local(path)
        realtime = path.rstrip(b"/") == REALTIME.raw_path
        if method == b"OPTIONS" and (known or realtime or path == b"*"):
            return None
        if realtime:
            connection.route = REALTIME
            if method != b"GET" or head.upgrade.lower() != b"websocket":
                return ApiError(426, "upgrade_required", "This path speaks websocket; connect with Upgrade: websocket.")
            return Realtime.open(self._core, connection)
        if not known:
            shown = path.decode("latin-1")[:200]
            return ApiError(404, "not_found", f"There is nothing at {shown!r}; the API is under /v1, for example /v1/models.")
        if method not in (b"GET", b"HEAD") or connection.route is not None:
            wanted = "POST" if connection.route is not None else "GET"
            return ApiError(405, "method_not_allowed", f"This path takes {wanted}.")
        return None

    def _is_local(self, path: bytes) -> bool:
        return path in LOCAL or path in HANDED_OVER or path.startswith(MODELS + b"/")

    @staticmethod
    def _authenticate(connection: ClientConnection, keys: Keys) -> ApiError | None:
        head = connection.head
        if connection.route is None and not head.path.startswith(b"/v1/"):
            return None
        value = head.authorization
        key = value[7:].strip() if value[:7].lower() == b"bearer " else head.api_key
        if not key and head.protocols:
            key = Realtime.key_of(head.protocols)
        if not key:
            message = "Send an API key: the header Authorization: Bearer KEY, or x-api-key: KEY."
            return ApiError(401, "missing_api_key", message)
        name = keys.name_of(key)
        if name is None:
            message = "This API key is not known here; check it, or ask the operator for one."
            return ApiError(401, "invalid_api_key", message)
        connection.key_name = name
        return None

    def request(self, connection: ClientConnection, body: bytes) -> None:
        """The whole request is in; the connection is BUSY until its ``finished`` is called."""
        route = connection.route
        head = connection.head
        if route is None or head.method != b"POST":
            self._local(connection)
            return
        try:
            if route.multipart:
                fields = multipart.peek(body, head.content_type)
            else:
                fields = body_peek.peek(body)
                if not fields.model:
                    raise body_peek.bad("missing_model", "The body names no model; take one from GET /v1/models.", "model")
            priority = self._priority(connection) if head.priority else Priority.NORMAL
        except ApiError as error:
            connection.error(error, route.family)
            self.settle_local(connection, error.status, error.code)
            connection.finished()
            return
        forward = b"%bX-Request-Id: %b\r\n" % (head.passed, head.request_id)
        exchange = connection.exchange = Exchange(
            self._core, connection, route, fields, body, forward, connection.key_name, head.session, priority
        )
        exchange.start()

    def _priority(self, connection: ClientConnection) -> Priority:
        wanted = BY_NAME.get(connection.head.priority.lower())
        if wanted is None:
            raise ApiError(400, "bad_priority", "X-LLMGW-Priority is high, normal or low.", param="x-llmgw-priority")
        if self.keys is None:
            return wanted
        highest = self._config.queue.priorities.get(connection.key_name, "normal")
        return max(wanted, BY_NAME[highest.encode()])

    def _local(self, connection: ClientConnection) -> None:
        head = connection.head
        path, method = head.path, head.method
        head_only = method == b"HEAD"
        if method == b"OPTIONS":
            lines = self.cors.preflight(head.headers_wanted) if head.origin else []
            self._answer(connection, 204, b"", extra=[ALLOW, *lines])
            return
        if path in HANDED_OVER:
            self._handover.take(connection)
            return
        try:
            if path.startswith(MODELS) and path.rstrip(b"/") != MODELS:
                status, body = 200, models.one(self._core.directory.table, path, self._started)
            elif path.startswith(MODELS):
                status, body = 200, models.listing(self._core.directory.table, self._started)
            else:
                status, body = self._health.answer(path)
        except ApiError as error:
            connection.error(error, Family.OPENAI)
            self.settle_local(connection, error.status, error.code)
            connection.finished()
            return
        self._answer(connection, status, body, head_only=head_only)

    def _answer(
        self,
        connection: ClientConnection,
        status: int,
        body: bytes,
        *,
        extra: list[bytes] | None = None,
        head_only: bool = False,
    ) -> None:
        lines = [connection.own_lines(), *(extra or [])]
        connection.write(render.answer(status, body, extra=lines, head_only=head_only))
        self.settle_local(connection, status)
        connection.finished()

    def settle_local(self, connection: ClientConnection, status: int, error: str = "") -> None:
        """Accounts for a request that no engine saw."""
        head = connection.head
        path = head.path or head.target.partition(b"?")[0]
        route = connection.route
        if route is not None:
            label = route.path
        else:
            label = MODELS.decode() if path.startswith(MODELS) else path.decode() if self._is_local(path) else "other"
        self._core.ledger.settle(
            Settlement(
                status,
                head.method.decode() or "-",
                path.decode("latin-1")[:200],
                label,
                connection.peer,
                head.request_id.decode(),
                self.now() - connection.began,
                key=connection.key_name,
                error=error,
            )
        )
