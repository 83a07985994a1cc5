"""The OpenAPI 3.1 document, made from the table of routes and the pydantic shapes. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, TypeAlias

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from llmgw_coordinator.api.routes import Route
from llmgw_coordinator.api.shapes import ErrorView
from llmgw_proto import __version__

_References: TypeAlias = Mapping[Any, Any]
"""(shape, mode) to its schema."""
_REF = "#/components/schemas/{model}"
_PARAMETER = re.compile(r"\{(\w+)\}")
_HEADERS = {
    "x-llmgw-stale": {
        "description": "present when etcd does not answer: for how many seconds what is shown has not been up to date",
        "schema": {"type": "number"},
    }
}


def document(routes: Sequence[Route]) -> dict[str, Any]:
    """Every route is in it."""
    references, components = _schemas(routes)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, references)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "llmgw admin API",
            "version": __version__,
            "description": "Names in paths are percent-encoded: org%2Fmodel is one part. Writes answer 503 with Retry-After "
            "while etcd is away; reads are then answered from memory with the header x-llmgw-stale.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _schemas(routes: Iterable[Route]) -> tuple[_References, dict[str, Any]]:
    wanted: dict[tuple[type[BaseModel], JsonSchemaMode], None] = {(ErrorView, "serialization"): None}
    for route in routes:
        if route.body is not None:
            wanted[route.body, "validation"] = None
        for shape in route.answers.values():
            if shape is not None:
                wanted[shape, "serialization"] = None
    references, definitions = models_json_schema(list(wanted), ref_template=_REF)
    return references, definitions.get("$defs", {})


def _operation(route: Route, references: _References) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in _PARAMETER.findall(route.path)
        ]
        + [{"name": each.name, "in": "query", "schema": each.schema, "description": each.description} for each in route.query],
        "responses": {str(status): _response(route, status, references) for status in sorted(_statuses(route))},
        "security": [{"token": []}] if route.token else [],
    }
    if route.body is not None:
        schema = references[route.body, "validation"]
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return operation


def _statuses(route: Route) -> set[int]:
    always = {401, 429, 503} if route.token else set()
    return {*route.answers, *route.errors, *always}


def _response(route: Route, status: int, references: _References) -> dict[str, Any]:
    described: dict[str, Any] = {"description": HTTPStatus(status).phrase}
    if status not in route.answers:
        described["content"] = {"application/json": {"schema": references[ErrorView, "serialization"]}}
        return described
    shape = route.answers[status]
    schema = references[shape, "serialization"] if shape is not None else {"type": "string"}
    if route.content_type == "application/json" and shape is None:
        schema = {"type": "object"}
    described["content"] = {route.content_type: {"schema": schema}}
    if route.token and route.method == "GET":
        described["headers"] = _HEADERS
    return described
