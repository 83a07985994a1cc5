"""``/health``: whether this router can serve, and why not. ``/livez`` only says that it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from llmgw_router.table.directory import Directory

_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class Source:
    """How the source of endpoints is doing; written by the source, read here."""

    kind: str = "static"
    loaded: bool = False
    """A table has come from somewhere, be it a snapshot on disk."""
    stale_since: float | None = None
    """Monotonic; None while what is known is up to date."""
    reason: str = ""


class Health:
    def __init__(self, directory: Directory, source: Source, now: Callable[[], float], version: str) -> None:
        self._directory = directory
        self._source = source
        self._now = now
        self._version = version
        self.stopping = False

    def answer(self, path: bytes) -> tuple[int, bytes]:
        """Status and JSON body."""
        reason = self.not_ready() if path not in (b"/livez", b"/") else ""
        stale = self._source.stale_since
        table = self._directory.table
        body: dict[str, object] = {
            "status": "unavailable" if reason else "ok",
            "version": self._version,
            "models": len(table.models),
            "replicas": len(table.replicas),
            "ejected": sum(each.health.ejected for each in table.replicas),
            "source": self._source.kind,
            "stale": stale is not None,
        }
        if reason:
            body["reason"] = reason
        if stale is not None:
            body["stale_seconds"] = round(self._now() - stale, 1)
            body["stale_reason"] = self._source.reason
        return (503 if reason else 200), _encode(body)

    def not_ready(self) -> str:
        """Why this router should get no requests; empty when it should."""
        if self.stopping:
            return "stopping"
        if not self._source.loaded:
            return f"no table of endpoints yet: {self._source.reason or 'waiting for the store'}"
        return ""
