"""Errors as the client's API family expects them, as a body and as an event in a stream. Pure."""

from __future__ import annotations

import msgspec

from llmgw_router.api.routes import Family
from llmgw_router.errors import ApiError

_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}

_encode = msgspec.json.Encoder().encode


def openai_type(status: int) -> str:
    return _OPENAI_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")


def anthropic_type(status: int) -> str:
    return _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")


def body(error: ApiError, family: Family, request_id: str) -> bytes:
    """The JSON body of an error answer."""
    return _encode(_payload(error, family, request_id))


def event(error: ApiError, family: Family, request_id: str) -> bytes:
    """The same as the last event of a stream. It never looks like an end that went well."""
    if family is Family.RESPONSES:
        payload: object = {"type": "error", "code": error.code, "message": error.message, "param": error.param}
        return b"event: error\ndata: " + _encode(payload) + b"\n\n"
    encoded = b"data: " + _encode(_payload(error, family, request_id)) + b"\n\n"
    return b"event: error\n" + encoded if family is Family.ANTHROPIC else encoded


def _payload(error: ApiError, family: Family, request_id: str) -> object:
    if family is Family.ANTHROPIC:
        inner = {"type": anthropic_type(error.status), "message": error.message}
        return {"type": "error", "error": inner, "request_id": request_id}
    return {
        "error": {
            "message": error.message,
            "type": openai_type(error.status),
            "param": error.param,
            "code": error.code,
        }
    }
