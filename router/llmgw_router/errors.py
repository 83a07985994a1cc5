"""What can go wrong in the router. The name says the reaction.

::

    RouterError
    ├── ApiError              answer the client with it: it has a status, a code, a message and perhaps Retry-After
    ├── EngineError           this attempt is over; the exchange decides about one more
    │   ├── ConnectError          nothing was sent: another replica may take the request
    │   ├── SilentError           the engine sent no byte in time
    │   ├── StalledError          the engine stopped in the middle for too long
    │   ├── BrokenError           the engine closed the connection before the answer was complete
    │   └── BadAnswerError        what came is not HTTP
    └── TableError            this endpoint cannot be used: skip it and say so
"""

from __future__ import annotations


class RouterError(Exception):
    """The root; never raised itself."""


class ApiError(RouterError):
    """An answer other than success that the router itself gives."""

    def __init__(
        self, status: int, code: str, message: str, *, param: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.retry_after = retry_after


class EngineError(RouterError):
    """An attempt at one replica failed."""

    code = "engine_failed"
    status = 502


class ConnectError(EngineError):
    """No connection to the engine: refused, unreachable or not in time."""

    code = "engine_unreachable"
    status = 503


class SilentError(EngineError):
    """No byte of an answer within the first-byte limit."""

    code = "engine_timeout"
    status = 504


class StalledError(EngineError):
    """The answer began, and then nothing came for longer than the idle limit, or the total limit is over."""

    code = "engine_stalled"
    status = 504


class BrokenError(EngineError):
    """The connection ended before the answer did."""

    code = "engine_disconnected"


class BadAnswerError(EngineError):
    """The engine's answer is not well-formed HTTP/1.1."""

    code = "engine_protocol_error"


class TableError(RouterError):
    """An endpoint that cannot be used."""
