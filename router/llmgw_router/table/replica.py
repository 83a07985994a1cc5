"""A replica as the router works with it: what its spec says, its load, its connections and its record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmgw_router.health.outlier import Record
from llmgw_router.table.spec import EndpointSpec

if TYPE_CHECKING:
    from llmgw_router.engine.connection import EngineConnection
    from llmgw_router.engine.known import KnownAnswer


class Replica:
    """Mutable, owned by the directory; the policies see ``id``, ``load`` and ``weight`` of it."""

    __slots__ = (
        "_workers",
        "answer",
        "card",
        "connections",
        "gone",
        "heads",
        "health",
        "id",
        "idle",
        "last_byte",
        "limit",
        "load",
        "misses",
        "spec",
        "weight",
    )

    def __init__(self, spec: EndpointSpec, workers: int = 1) -> None:
        self.id = spec.id
        self._workers = workers
        self.update(spec)
        self.load = 0
        """Requests that it was chosen for and that are not settled."""
        self.health = Record()
        self.idle: list[EngineConnection] = []
        self.connections: set[EngineConnection] = set()
        self.heads: dict[bytes, bytes] = {}
        """Path to the beginning of a request's head, rendered once."""
        self.answer: KnownAnswer | None = None
        """How its answers begin."""
        self.misses = 0
        """Whole answers that began in another way."""
        self.last_byte = 0.0
        """When the engine last gave a sign of life (monotonic)."""
        self.card: dict[str, dict[str, object]] = {}
        """What the engine's own ``/v1/models`` says, by model name."""
        self.gone = False
        """No longer in the table; its connections close as they finish."""

    def update(self, spec: EndpointSpec) -> None:
        """Takes a new spec of the same identity."""
        self.spec = spec
        self.weight = spec.weight
        most = spec.max_concurrency
        self.limit = None if most is None else max(1, most // self._workers)
        """Requests at once that this worker may give it: its share of what the engine takes."""

    def head(self, path: bytes) -> bytes:
        """``POST /path HTTP/1.1`` with Host and the engine's key."""
        head = self.heads.get(path)
        if head is None:
            key = b"Authorization: Bearer %b\r\n" % self.spec.key.encode() if self.spec.key else b""
            authority = self.spec.address.authority.encode("idna" if not self.spec.address.authority.isascii() else "ascii")
            head = self.heads[path] = b"POST %b HTTP/1.1\r\nHost: %b\r\n%b" % (path, authority, key)
        return head

    @property
    def full(self) -> bool:
        return self.limit is not None and self.load >= self.limit
