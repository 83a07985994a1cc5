"""Settles requests: the one place where what happened becomes figures and a log line, whichever way a request ended."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from llmgw_router.account.access_log import AccessLog, Entry, timestamp
from llmgw_router.account.metrics import Metrics
from llmgw_router.relay.usage import Usage
from llmgw_router.table.directory import ModelState

_PROBES = frozenset({"/health", "/healthz", "/livez", "/readyz", "/metrics"})
_CODES = {status: str(status) for status in range(100, 600)}


class Settlement(msgspec.Struct, gc=False):
    """All that is known about a request that is over."""

    status: int
    """What the client got; 499 when it left first."""
    method: str
    path: str
    route: str
    """The path if it is one of ours, else ``other``."""
    client: str
    request_id: str
    seconds: float
    state: ModelState | None = None
    replica: str = ""
    key: str = ""
    stream: bool = False
    first_byte: float | None = None
    bytes_out: int = 0
    events: int = 0
    """Delivered; only filled in where the engine did not tell the tokens."""
    usage: Usage | None = None
    attempts: int = 0
    error: str = ""


class Ledger:
    def __init__(self, metrics: Metrics, log: AccessLog, wall: Callable[[], float]) -> None:
        self._metrics = metrics
        self._log = log
        self._wall = wall

    def settle(self, it: Settlement) -> None:
        metrics = self._metrics
        state = it.state
        model = state.name if state is not None else ""
        metrics.requests.add((model, it.route, _CODES[it.status]))
        metrics.duration.of((model, it.route)).observe(it.seconds)
        if state is not None:
            state.requests += 1
            if it.status >= 500:
                state.errors += 1
            elif it.status < 400:
                state.seconds += (it.seconds - state.seconds) * 0.1
        estimated = self._tokens(it, model)
        if self._log.wants(it.status, probe=it.route in _PROBES):
            self._write(it, model, estimated)

    def _tokens(self, it: Settlement, model: str) -> int:
        """Counts tokens; returns how many were only estimated."""
        usage = it.usage
        if usage is None:
            return 0
        add = self._metrics.tokens.add
        if usage.prompt:
            add((model, it.key, "prompt"), usage.prompt)
        if usage.cached:
            add((model, it.key, "cached"), usage.cached)
        if usage.completion:
            add((model, it.key, "completion"), usage.completion)
        elif usage.completion is None and it.events > 0:
            # One event is one token, or a little less than that; what was delivered must not be free.
            self._metrics.estimated.add((model, it.key), it.events)
            return it.events
        return 0

    def _write(self, it: Settlement, model: str, estimated: int) -> None:
        if not self._log.enabled:
            return
        usage = it.usage or Usage()
        self._log.add(
            Entry(
                time=timestamp(self._wall()),
                request_id=it.request_id,
                method=it.method,
                path=it.path,
                status=it.status,
                duration=round(it.seconds, 6),
                client=it.client,
                model=model,
                replica=it.replica,
                key=it.key,
                stream=it.stream,
                first_byte=None if it.first_byte is None else round(it.first_byte, 6),
                bytes_out=it.bytes_out,
                prompt_tokens=usage.prompt,
                completion_tokens=estimated or usage.completion,
                estimated=estimated > 0,
                attempts=it.attempts,
                error=it.error,
            )
        )
