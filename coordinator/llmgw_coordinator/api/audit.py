"""One structured log line for every write, done or refused."""

from __future__ import annotations

import logging

from aiohttp import web

logger = logging.getLogger("llmgw_coordinator.audit")

_WHAT = web.RequestKey("what", dict[str, object])
_FAILED = web.RequestKey("failed", str)


def tell(request: web.Request, **what: object) -> None:
    """What the write is about, for its line."""
    request[_WHAT] = what


def failed(request: web.Request, code: str) -> None:
    """The write came to nothing after its answer had begun, with a status that says otherwise."""
    request[_FAILED] = code


def record(request: web.Request, status: int, outcome: str) -> None:
    """``outcome``: ``done`` or the error's code. The token is never part of it."""
    logger.info(
        "%s %s",
        request.method,
        request.rel_url.raw_path,
        extra={
            "fields": {
                "method": request.method,
                "path": request.rel_url.raw_path,
                "client": request.remote or "",
                "agent": request.headers.get("User-Agent", "")[:200],
                "status": status,
                "outcome": request.get(_FAILED, outcome),
                **request.get(_WHAT, {}),
            }
        },
    )
