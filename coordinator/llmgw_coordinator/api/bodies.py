"""Reading what a client sent: JSON first, then the shape, and every complaint with the path of the field."""

from __future__ import annotations

import difflib
from typing import Any, TypeVar

from aiohttp import web
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, from_json

from llmgw_coordinator.api.problems import ApiError
from llmgw_coordinator.api.shapes import ErrorDetail
from llmgw_proto.engines import check_args, check_command, check_env
from llmgw_proto.records.model import StrictModelSpec

B = TypeVar("B", bound=BaseModel)


async def read_object(request: web.Request) -> dict[str, Any]:
    """The body as a JSON object.

    Raises:
        ApiError: 400.
    """
    raw = await request.read()
    try:
        data = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise ApiError(400, "bad_json", f"the body is not JSON: {error}", "send one JSON object, UTF-8") from error
    if not isinstance(data, dict):
        raise ApiError(400, "bad_json", f"the body is a JSON {type(data).__name__}", "send one JSON object")
    return data


def checked(shape: type[B], data: dict[str, Any]) -> B:
    """
    Raises:
        ApiError: 422, with all complaints.
    """
    try:
        return shape.model_validate(data)
    except ValidationError as error:
        raise _invalid([_describe(shape, each) for each in error.errors(include_url=False)]) from error


def checked_model(name: str, data: dict[str, Any]) -> StrictModelSpec:
    """A model spec for the path's name, its profiles checked against what engines reserve.

    Raises:
        ApiError: 422.
    """
    if data.setdefault("name", name) != name:
        detail = ErrorDetail(path="name", message=f"is {data['name']!r}, but the path says {name!r}; make them equal")
        raise _invalid([detail])
    spec = checked(StrictModelSpec, data)
    for index, profile in enumerate(spec.profiles):
        refusal = check_args(profile.engine, profile.args) or check_env(profile.env)
        if refusal is None and profile.engine == "command":
            refusal = check_command(profile.command)
        if refusal is not None:
            field, _, message = refusal.partition(": ")
            raise _invalid([ErrorDetail(path=f"profiles.{index}.{field}", message=message)])
    return spec


def _invalid(details: list[ErrorDetail]) -> ApiError:
    first = details[0]
    more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
    return ApiError(
        422,
        "invalid",
        f"{first.path}: {first.message}{more}",
        "correct the fields named in details; /openapi.json has the schema",
        details=tuple(details),
    )


def _describe(shape: type[BaseModel], error: ErrorDetails) -> ErrorDetail:
    path = ".".join(str(part) for part in error["loc"])
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        known = _fields_at(shape, error["loc"][:-1])
        close = difflib.get_close_matches(str(error["loc"][-1]), known, n=1)
        message = f"unknown field; did you mean {close[0]}?" if close else f"unknown field; known here: {', '.join(known)}"
    elif error["type"] == "missing":
        message = "missing; set it"
    elif isinstance(error["input"], str | int | float | bool) and repr(error["input"]) not in message:
        message = f"{message} (it is {str(error['input'])[:100]!r})"
    return ErrorDetail(path=path or "body", message=message)


def _fields_at(shape: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    inner = shape
    for part in path:
        field = inner.model_fields.get(str(part))
        if field is not None:
            inner = next(iter(_models_in(field.annotation)), inner)
    return sorted(inner.model_fields)


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for each in getattr(annotation, "__args__", ()) for model in _models_in(each)]
