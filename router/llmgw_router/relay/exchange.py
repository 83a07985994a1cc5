"""One request's way to an engine and back.

::

    admit ──▶ waiting ──▶ connecting ──▶ sent ──▶ answering ──▶ settled
      │  ▲       │            │           │           │            ▲
      │  └───────┼── retry ◀──┴───────────┘           │            │
      └──────────┴────────────────────────────────────┴── failed ──┘

All moves are calls from the event loop, from the engine's connection or the client's; nothing here waits. There is one retry,
and only while the client has got nothing. :meth:`Exchange._settle` is the only way out.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from llmgw_router.account.figures import Series
from llmgw_router.account.ledger import Settlement
from llmgw_router.admission.queue import Priority
from llmgw_router.api import errors as api_errors
from llmgw_router.api import multipart, peek
from llmgw_router.api.routes import Route
from llmgw_router.engine.connection import EngineConnection
from llmgw_router.errors import ApiError, BrokenError, ConnectError, EngineError, SilentError, StalledError
from llmgw_router.http.render import LAST_CHUNK, chunk
from llmgw_router.policies.base import NO_HINTS, Hints
from llmgw_router.relay import events
from llmgw_router.relay.answer import JsonCopy, render_head
from llmgw_router.relay.core import Core
from llmgw_router.relay.lookup import find_group, no_replica
from llmgw_router.relay.usage import Usage
from llmgw_router.table.directory import Group, ModelState
from llmgw_router.table.replica import Replica

if TYPE_CHECKING:
    from llmgw_router.client.connection import ClientConnection

RETRY_STATUS = frozenset({502, 503, 529})
_SEPARATE_WRITE = 65_536
_PROMPT_LIMIT = 262_144
"""What a policy gets to see of a prompt: enough for any prefix worth sharing, little enough to hash in no time."""
_HOLD_SECONDS = 1.0


class Exchange:
    # Attributes that begin with the defaults of the class, so that a new exchange costs little.
    deadline = 0.0
    """While waiting: when it gives up."""
    left = False
    _state: ModelState | None = None
    _replica: Replica | None = None
    """The one that has the request now."""
    _tried: Replica | None = None
    """The one that had it before."""
    _connection: EngineConnection | None = None
    _connecting: asyncio.Task[None] | None = None
    _attempts = 0
    _retried = False
    _reconnected = False
    _started = False
    """The client has got the first byte."""
    _settled = False
    _withhold = False
    _status = 0
    """Of the engine's answer, once its head is accepted."""
    _verdict = 0
    """The status to account for, where it is not the one that the client saw."""
    _sent_at = _last_data = _paused_at = 0.0
    _first_byte: float | None = None
    _stream: events.EventStream | None = None
    _gaps: Series
    """Set together with the stream."""
    _framed = False
    """The stream goes to the client in chunks."""
    _copy: JsonCopy | None = None
    _bytes_out = 0

    def __init__(
        self,
        core: Core,
        client: ClientConnection,
        route: Route,
        fields: peek.Peek,
        body: bytes,
        forward: bytes,
        key: str,
        session: bytes,
        priority: Priority,
    ) -> None:
        self._core = core
        self._client = client
        self._route = route
        self._fields = fields
        self._body = body
        self._forward = forward
        """Finished header lines of the client's that the engine gets."""
        self._key = key
        self._session = session
        self.priority = priority
        self._usage = Usage()

    # --- admission ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Finds out where to send the request. Errors are answered, not raised."""
        core = self._core
        core.active.add(self)
        try:
            group = find_group(core.directory.table, self._fields.model or "", self._route)
        except ApiError as error:
            self._answer_error(error)
            return
        state = self._state = group.model
        state.running += 1
        if core.ask_usage and self._fields.stream and self._route.include_usage:
            options = self._fields.stream_options
            if options is None or not options.include_usage:
                self._body = peek.ask_for_usage(self._body, self._fields)
                self._withhold = True
        if state.queue.count or not self._place(group):
            self._wait(state)

    def _place(self, group: Group) -> bool:
        """Sends the request to a replica. Returns False when all are at their limit."""
        candidates = group.usable
        if not candidates:
            self._answer_error(no_replica(group.model.name))
            return True
        tried = self._tried
        if tried is not None:
            candidates = tuple(each for each in candidates if each is not tried)
        if group.limited:
            candidates = tuple(each for each in candidates if not each.full)
        if not candidates:
            return False
        policy = group.model.policy
        hints = Hints() if policy.needs_session or policy.needs_prompt else NO_HINTS
        if policy.needs_session:
            hints.session = self._session or (self._fields.user or "").encode()
        if policy.needs_prompt:
            field = self._route.prompt_field
            start = self._body.find(field) if field else -1
            if start >= 0:
                hints.prompt = self._body[start : start + _PROMPT_LIMIT]
        self._attempt(policy.choose(candidates, hints))
        return True

    def _wait(self, state: ModelState) -> None:
        queue = state.queue
        self.deadline = self._core.now() + self._core.config.queue.seconds
        self._sent_at = self._core.now()
        if queue.join(self):
            return
        bumped = queue.bump(self.priority)
        if bumped is not None and queue.join(self):
            bumped.give_up()
            return
        self._answer_error(
            ApiError(
                429,
                "queue_full",
                f"All replicas of {state.name!r} are busy and {len(queue)} requests wait already; try again later.",
                retry_after=self._busy_for(state),
            )
        )

    def try_now(self) -> bool:
        state = self._state
        group = self._core.directory.table.group(state.name, self._route.capability) if state is not None else None
        if state is None or group is None:
            self.give_up()
            return True
        waited = self._core.now() - self._sent_at
        if not self._place(group):
            return False
        self._core.metrics.queued.of((state.name,)).observe(waited)
        return True

    def give_up(self) -> None:
        state = self._state
        if state is not None and not self._settled:
            message = f"No replica of {state.name!r} became free in time; try again later."
            self._answer_error(ApiError(503, "queue_timeout", message, retry_after=self._busy_for(state)))

    def _busy_for(self, state: ModelState) -> float:
        """When the line that stands now will be served, in seconds, from how long answers take."""
        group = self._core.directory.table.group(state.name, self._route.capability)
        places = sum(each.limit or 1 for each in group.usable) if group is not None else 1
        return min(600.0, state.seconds * (len(state.queue) + 1) / max(1, places))

    # --- one attempt --------------------------------------------------------------------------------------------------

    def _attempt(self, replica: Replica) -> None:
        self._replica = replica
        replica.load += 1
        self._attempts += 1
        now = self._core.now()
        connection = self._core.pool.take(replica, now)
        if connection is not None:
            self._send(connection, now)
        else:
            self._connecting = self._core.spawn(self._connect(replica))

    async def _connect(self, replica: Replica) -> None:
        try:
            connection = await self._core.pool.connect(replica)
        except ConnectError as error:
            self._connecting = None
            if not self._settled:
                self._attempt_failed(error)
            return
        self._connecting = None
        if self._settled:
            connection.close()
        else:
            self._send(connection, self._core.now())

    def _send(self, connection: EngineConnection, now: float) -> None:
        self._connection = connection
        replica = connection.replica
        body = self._body
        served = replica.spec.served_name
        if served is not None:
            form = self._route.multipart
            body = multipart.with_model(body, self._client.head.content_type, served) if form else peek.with_model(body, served)
        self._sent_at = now
        head = replica.head(self._route.raw_path)
        if len(body) < _SEPARATE_WRITE:
            connection.send(self, b"%b%bContent-Length: %d\r\n\r\n%b" % (head, self._forward, len(body), body))
        else:
            connection.send(self, b"%b%bContent-Length: %d\r\n\r\n" % (head, self._forward, len(body)))
            connection.transport.write(body)

    def _leave_replica(self) -> None:
        replica = self._replica
        if replica is not None:
            self._replica = None
            self._tried = replica
            replica.load -= 1
            if replica.limit is not None:
                self._core.freed(replica)

    def _drop_connection(self) -> None:
        connection = self._connection
        if connection is not None:
            self._connection = None
            connection.close()
        connecting = self._connecting
        if connecting is not None:
            self._connecting = None
            connecting.cancel()

    def _attempt_failed(self, error: EngineError) -> None:
        """The engine failed before it gave the client anything, or in the middle of its answer."""
        replica = self._replica
        assert replica is not None
        connection = self._connection
        stale = (
            isinstance(error, BrokenError)
            and connection is not None
            and connection.requests > 0
            and not connection.head_done
            and connection.fed == 0
        )
        self._drop_connection()
        if stale and not self._reconnected and not self._started:
            # The engine closed an idle connection just as it was used. A new one tells whether it lives.
            self._reconnected = True
            self._core.metrics.retries.add((self._name(), "idle_connection_closed"))
            self._connecting = self._core.spawn(self._connect(replica))
            return
        self._core.failed(replica, error.code, decisive=isinstance(error, ConnectError))
        if self._started:
            self._break_off(error)
        elif not self._retry(error.code):
            self._answer_error(ApiError(error.status, error.code, f"{error}.", retry_after=1 if error.status == 503 else None))

    def _retry(self, reason: str) -> bool:
        """Tries once more on another replica. Returns False when that is not possible."""
        state = self._state
        if self._retried or state is None:
            return False
        group = self._core.directory.table.group(state.name, self._route.capability)
        tried = self._replica
        if group is None or not any(each is not tried and not each.full for each in group.usable):
            return False
        self._retried = True
        self._status = 0
        self._stream = None
        self._copy = None
        self._leave_replica()
        self._core.metrics.retries.add((state.name, reason))
        return self._place(group)

    # --- the answer ---------------------------------------------------------------------------------------------------

    def engine_data(self, connection: EngineConnection, data: bytes, complete: bool) -> None:
        now = self._core.now()
        connection.replica.last_byte = now
        stream = self._stream
        if self._started and stream is not None and not complete:
            # The middle of a stream: no head, no end.
            if stream.plain(data):
                self._gaps.observe(now - self._last_data)
                self._last_data = now
            else:
                data = self._events(stream, data, now)
                if not data:
                    return
            size = len(data)
            self._bytes_out += size
            self._client.transport.write(b"%x\r\n%b\r\n" % (size, data) if self._framed else data)
            return
        if not self._status:
            if not self._accept(connection, data, complete):
                return
            stream = self._stream
        if stream is not None:
            if data:
                data = self._events(stream, data, now) if self._started else stream.feed(data)
            if complete:
                data += stream.flush()
            if not self._started and not self._first_event(connection, data, complete):
                return
        elif self._copy is not None and data:
            self._copy.add(data)
            self._last_data = now
        else:
            self._last_data = now
        self._pass(connection, data, complete, now)
        if complete:
            self._finish(connection, now)
        elif stream is not None:
            # What the first read brought is not kept for as long as the stream lasts.
            stream.count()

    def _take_chunk(self, data: bytes) -> bool:
        """In the course of most streams, each chunk has one event in it and can be passed on untouched."""
        stream = self._stream
        size = stream.plain_chunk(data) if stream is not None else 0
        if not size:
            return False
        now = self._core.now()
        if self._replica is not None:
            self._replica.last_byte = now
        self._gaps.observe(now - self._last_data)
        self._last_data = now
        self._bytes_out += size
        self._client.transport.write(data)
        return True

    def _events(self, stream: events.EventStream, data: bytes, now: float) -> bytes:
        """Takes what came in the course of a stream; several events at once share the time since the last."""
        before = stream.events
        out = stream.feed(data)
        fresh = stream.events - before
        if fresh > 0:
            self._gaps.observe((now - self._last_data) / fresh, fresh)
            self._last_data = now
        return out

    def _first_event(self, connection: EngineConnection, data: bytes, complete: bool) -> bool:
        """Judges the answer by the first event. Returns False when there is none yet or the request was sent elsewhere."""
        if not data and not complete:
            return False
        if not events.is_error(data):
            self._core.succeeded(connection.replica)
        elif events.is_client_fault(data):
            self._verdict = 400
        else:
            self._core.failed(connection.replica, "error_event", decisive=False)
            if self._give_back(connection, complete, "error_event"):
                return False
            self._verdict = 502
        return True

    def _accept(self, connection: EngineConnection, data: bytes, complete: bool) -> bool:
        """Looks at the answer's head, before anything is sent. Returns False when the request was sent elsewhere."""
        status = connection.status
        if status in RETRY_STATUS:
            self._core.failed(connection.replica, str(status), decisive=False)
            if self._give_back(connection, complete, str(status)):
                return False
        elif status >= 500:
            self._core.failed(connection.replica, str(status), decisive=False)
        self._status = status
        content_type = connection.content_type.lower() if status == 200 else b""
        if content_type.startswith(b"text/event-stream"):
            # Whether this is a success, its first event will tell.
            self._stream = events.EventStream(self._usage, withhold=self._withhold)
            self._gaps = self._core.metrics.between_tokens.of((self._name(),))
            return True
        if content_type.startswith(b"application/json"):
            if complete:
                self._usage.read_answer(data)
            else:
                self._copy = JsonCopy()
        if status < 500:
            self._core.succeeded(connection.replica)
        return True

    def _give_back(self, connection: EngineConnection, complete: bool, reason: str) -> bool:
        """Leaves this answer and tries another replica. Returns False, with nothing changed, when there is none."""
        self._connection = None
        if not self._retry(reason):
            self._connection = connection
            return False
        if complete:
            connection.release(self._core.now())
        else:
            connection.close()
        return True

    def _pass(self, connection: EngineConnection, data: bytes, complete: bool, now: float) -> None:
        """Writes to the client, once: the head if it is due, the data, the end."""
        client = self._client
        chunked = client.head.http11 and (connection.length is None or self._stream is not None)
        if not self._started:
            if not data and not complete:
                return
            self._started = True
            self._last_data = now
            # There is no second try from here on.
            self._body = self._forward = b""
            client.body_done()
            self._first_byte = now - client.began
            if self._stream is not None:
                if chunked:
                    self._framed = True
                    connection.take_chunk = self._take_chunk
                self._core.metrics.first_token.of((self._name(),)).observe(self._first_byte)
            whole = len(data) if complete else None
            head = render_head(connection, client, stream=self._stream is not None, chunked=chunked, whole=whole)
            if chunked and complete and self._stream is None:
                chunked = False
        else:
            head = b""
        if chunked:
            out = chunk(data) if data else b""
            if complete:
                out += LAST_CHUNK
        else:
            out = data
        self._bytes_out += len(data)
        if head:
            out = head + out
        if out:
            client.write(out)

    def _finish(self, connection: EngineConnection, now: float) -> None:
        if self._copy is not None:
            self._copy.read_into(self._usage)
        self._connection = None
        connection.release(now)
        client = self._client
        if self._verdict:
            self._settle(self._verdict, "error_event", now)
        else:
            self._settle(self._status, "", now)
        client.finished(now)

    # --- what goes wrong ----------------------------------------------------------------------------------------------

    def engine_lost(self, connection: EngineConnection, error: EngineError) -> None:
        if not self._settled and connection is self._connection:
            self._attempt_failed(error)

    def _break_off(self, error: EngineError) -> None:
        """The answer has begun and cannot be completed: say so in a stream, and never end it as if it were whole."""
        client = self._client
        stream = self._stream
        failure = ApiError(error.status, error.code, f"The answer broke off: {error}.")
        if stream is None:
            self._settle(error.status, error.code)
            client.abort()
            return
        tail = api_errors.event(failure, self._route.family, client.head.request_id.decode())
        if not stream.ends_clean:
            tail = b"\n\n" + tail
        self._settle(error.status, error.code)
        client.keep_alive = False
        client.write(chunk(tail) + LAST_CHUNK if client.head.http11 else tail)
        client.finished()

    def _answer_error(self, error: ApiError) -> None:
        client = self._client
        self._drop_connection()
        self._settle(error.status, error.code)
        client.error(error, self._route.family)
        client.finished()

    # --- the client's side --------------------------------------------------------------------------------------------

    def client_gone(self) -> None:
        """The client left: the engine must notice at once."""
        if self._settled:
            return
        if self._state is not None and self._replica is None:
            self._state.queue.leave(self)
        self._drop_connection()
        self._settle(499, "client_gone")

    def client_writable(self, writable: bool) -> None:
        """The client reads too slowly: the engine is not read either, so memory stays bounded."""
        connection = self._connection
        if connection is None or connection.closing:
            return
        if writable:
            self._paused_at = 0.0
            self._last_data = self._core.now()
            connection.transport.resume_reading()
        else:
            self._paused_at = self._core.now()
            connection.transport.pause_reading()

    def engine_writable(self, writable: bool) -> None:
        """The body is in memory already; there is nobody to slow down."""

    # --- time ---------------------------------------------------------------------------------------------------------

    def check(self, now: float) -> None:
        """Applies the limits."""
        connection = self._connection
        if connection is None:
            return
        limits = self._core.config.timeouts
        replica = connection.replica
        if self._paused_at:
            if now - self._paused_at > limits.idle:
                self._client.abort()
                self.client_gone()
        elif not self._started:
            if now - self._sent_at > limits.first_byte:
                self._attempt_failed(SilentError(f"engine {replica.id} gave no answer in {limits.first_byte:g} s"))
        elif now - max(self._last_data, self._sent_at) > limits.idle:
            self._attempt_failed(StalledError(f"engine {replica.id} sent nothing for {limits.idle:g} s"))
        elif now - self._sent_at > limits.total:
            self._attempt_failed(StalledError(f"engine {replica.id} was not done after {limits.total:g} s"))
        elif self._stream is not None and self._stream.holding and not self._withhold and now - self._last_data > _HOLD_SECONDS:
            self._pass(connection, self._stream.hurry(), False, now)

    def cut(self) -> None:
        """The router stops and will wait no longer."""
        if self._settled:
            return
        error = BrokenError("the router was stopped")
        self._drop_connection()
        if self._started:
            self._break_off(error)
        else:
            self._answer_error(ApiError(503, "router_stopping", "This router is being stopped; try again.", retry_after=1))

    # --- the end ------------------------------------------------------------------------------------------------------

    def _name(self) -> str:
        return self._state.name if self._state is not None else ""

    def _settle(self, status: int, error: str = "", now: float | None = None) -> None:
        """Every way ends here, once."""
        if self._settled:
            return
        self._settled = True
        core = self._core
        core.active.discard(self)
        state = self._state
        replica = self._replica or self._tried
        self._leave_replica()
        if state is not None:
            state.running -= 1
        client = self._client
        stream = self._stream
        core.ledger.settle(
            Settlement(
                status,
                "POST",
                self._route.path,
                self._route.path,
                client.peer,
                client.head.request_id.decode(),
                (core.now() if now is None else now) - client.began,
                state,
                replica.id if replica is not None else "",
                self._key,
                stream is not None,
                self._first_byte,
                self._bytes_out,
                stream.events if stream is not None and self._started and self._usage.completion is None else 0,
                self._usage,
                self._attempts,
                error,
            )
        )
        client.exchange = None
        client.body_done()
        self._stream = None
        self._copy = None
        self._body = b""
