"""The error answers of the admin API: one shape, and for every kind of trouble a code, a status and a remedy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from aiohttp import web

from llmgw_base.etcd.errors import StoreAuthError, StoreError, StoreFullError, StoreRefusedError
from llmgw_coordinator.api.shapes import ErrorBody, ErrorDetail, ErrorView

#: Seconds after which a client may try again when etcd is away; watches and leases come back within 2 s.
RETRY_AFTER = 2


@dataclass(eq=False)
class ApiError(Exception):
    """An answer that is not the wished one."""

    status: int
    code: str
    message: str
    remedy: str
    details: tuple[ErrorDetail, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)

    def response(self) -> web.Response:
        body = ErrorView(error=ErrorBody(code=self.code, message=self.message, remedy=self.remedy, details=list(self.details)))
        return web.Response(
            status=self.status, text=body.model_dump_json(), content_type="application/json", headers=dict(self.headers)
        )


def not_found(kind: str, name: str, *, see: str) -> ApiError:
    return ApiError(404, f"{kind}_not_found", f"there is no {kind} {name!r}", f"see `llmgwctl {see}` for those there are")


def from_store(error: StoreError) -> ApiError:
    """What a fault of etcd means for the caller."""
    if isinstance(error, StoreFullError):
        return ApiError(
            503, "store_full", f"etcd is out of space: {error}", "compact and defragment etcd, then disarm its alarm"
        )
    if isinstance(error, StoreAuthError):
        return ApiError(502, "store_refused", f"etcd refused: {error}", "correct etcd.user and its rights for the coordinator")
    if isinstance(error, StoreRefusedError):
        return ApiError(502, "store_refused", f"etcd refused: {error}", "see the coordinator's log and etcd's")
    return unavailable(str(error))


def unavailable(cause: str, *, after: float = RETRY_AFTER) -> ApiError:
    return ApiError(
        503,
        "store_unavailable",
        f"etcd cannot be written or read now: {cause}",
        "look after etcd; running models go on, and this request may be repeated later",
        headers={"Retry-After": str(math.ceil(after))},
    )


def from_http(error: web.HTTPException) -> ApiError:
    """aiohttp's own refusals: no such path, wrong method, body too large."""
    code, remedy = _HTTP.get(error.status, ("refused", "see /openapi.json for what this API takes"))
    headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
    return ApiError(error.status, code, error.reason, remedy, headers=headers)


_HTTP = {
    404: ("no_such_path", "see /openapi.json for the paths there are; names are percent-encoded, org%2Fmodel is one part"),
    405: ("wrong_method", "see /openapi.json for the methods of this path"),
    413: ("body_too_large", "send at most 1 MiB"),
}
