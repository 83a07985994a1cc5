"""The allow-list of paths. What is not here is 404 and never reaches an engine.

To add a path that engines serve, add one line to :data:`_TABLE`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Family(Enum):
    """How errors look to this client."""

    OPENAI = "openai"
    RESPONSES = "responses"
    ANTHROPIC = "anthropic"


@dataclass(frozen=True, slots=True)
class Route:
    """A POST path that is relayed to an engine under the same path."""

    path: str
    capability: str
    family: Family = Family.OPENAI
    multipart: bool = False
    include_usage: bool = False
    """Streams tell usage only when asked with ``stream_options.include_usage``."""
    prompt_field: bytes = b""
    """Where the part of the body begins that prefix-aware policies look at."""
    raw_path: bytes = b""

    @property
    def label(self) -> str:
        """For metrics."""
        return self.path


def _route(path: str, capability: str, family: Family = Family.OPENAI, **more: object) -> Route:
    return Route(path, capability, family, raw_path=path.encode(), **more)  # type: ignore[arg-type]  # the flags above


_TABLE = [
    _route("/v1/chat/completions", "chat", include_usage=True, prompt_field=b'"messages"'),
    _route("/v1/completions", "completions", include_usage=True, prompt_field=b'"prompt"'),
    _route("/v1/embeddings", "embeddings"),
    _route("/v1/responses", "responses", Family.RESPONSES, prompt_field=b'"input"'),
    _route("/v1/messages", "messages", Family.ANTHROPIC, prompt_field=b'"messages"'),
    _route("/v1/messages/count_tokens", "messages", Family.ANTHROPIC),
    _route("/v1/rerank", "rerank"),
    _route("/v2/rerank", "rerank"),
    _route("/rerank", "rerank"),
    _route("/v1/score", "score"),
    _route("/score", "score"),
    _route("/v1/pooling", "pooling"),
    _route("/pooling", "pooling"),
    _route("/v1/classify", "classify"),
    _route("/classify", "classify"),
    _route("/v1/tokenize", "tokenize"),
    _route("/tokenize", "tokenize"),
    _route("/v1/detokenize", "tokenize"),
    _route("/detokenize", "tokenize"),
    _route("/v1/audio/transcriptions", "transcriptions", multipart=True),
    _route("/v1/audio/translations", "translations", multipart=True),
    _route("/v1/audio/speech", "speech"),
    _route("/v1/images/generations", "images"),
    _route("/v1/images/edits", "images", multipart=True),
    _route("/v1/images/variations", "images", multipart=True),
    _route("/v1/moderations", "moderations"),
]

RELAYED: dict[bytes, Route] = {route.raw_path: route for route in _TABLE}

REALTIME = _route("/v1/realtime", "realtime")
"""GET with an upgrade to websocket."""

MODELS = b"/v1/models"
#: GET paths that the router answers itself, by what answers them.
LOCAL = frozenset({MODELS, b"/health", b"/healthz", b"/livez", b"/readyz", b"/"})
#: GET paths that are handed to the aiohttp application.
HANDED_OVER = frozenset({b"/metrics"})
