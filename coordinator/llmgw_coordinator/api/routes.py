"""The table of routes: what aiohttp serves and what the OpenAPI document says come from the same rows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from aiohttp import web
from pydantic import BaseModel

#: Seconds after which a write that etcd does not answer is given up.
WRITE_LIMIT = 10.0
Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Query:
    name: str
    schema: dict[str, Any]
    description: str


@dataclass(frozen=True, slots=True)
class Route:
    """One operation.

    ``answers`` maps statuses to the shape of the answer (None: text); error answers need not be listed, all share one shape.
    ``limit`` is for writes: seconds after which an answer is given up.
    """

    method: str
    path: str
    name: str
    summary: str
    handler: Handler
    answers: dict[int, type[BaseModel] | None] = field(default_factory=dict)
    body: type[BaseModel] | None = None
    query: tuple[Query, ...] = ()
    errors: tuple[int, ...] = ()
    token: bool = True
    content_type: str = "application/json"
    limit: float = WRITE_LIMIT


def as_json(shape: BaseModel, *, status: int = 200) -> web.Response:
    return web.Response(status=status, text=shape.model_dump_json(), content_type="application/json")
