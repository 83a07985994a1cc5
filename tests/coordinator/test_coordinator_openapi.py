"""The OpenAPI document says what is served, all of it."""

from __future__ import annotations

import asyncio
import functools
import json
import re
from collections.abc import Iterator
from typing import Any

from aiohttp import web

from llmgw_coordinator.api.server import with_document
from llmgw_coordinator.api.shapes import ModelView, Shape
from llmgw_testing.coordinators import Cluster, admin_of


@functools.cache
def load() -> tuple[dict[str, Any], set[tuple[str, str]]]:
    """The document as served, and the (method, path) pairs that the application routes."""

    async def body() -> tuple[dict[str, Any], set[tuple[str, str]]]:
        cluster = Cluster()
        async with cluster.coordinator() as coordinator, admin_of(coordinator, cluster.clock) as admin:
            answer = await admin.ask("GET", "/openapi.json", token=None)
            assert answer.status == 200
            app = admin.http.server.app  # type: ignore[attr-defined]  # TestServer has it
            routes = {
                (route.method, route.resource.canonical)
                for route in app.router.routes()
                if isinstance(route, web.ResourceRoute) and route.resource is not None
            }
            return answer.body, routes

    return asyncio.run(body())


def operations() -> list[tuple[str, str, dict[str, Any]]]:
    """(path, method, operation)"""
    document, _ = load()
    return [(path, method, operation) for path, methods in document["paths"].items() for method, operation in methods.items()]


def every(value: Any) -> Iterator[dict[str, Any]]:
    """All objects within."""
    if isinstance(value, dict):
        yield value
        for each in value.values():
            yield from every(each)
    elif isinstance(value, list):
        for each in value:
            yield from every(each)


def test_every_route_is_in_it_and_nothing_else() -> None:
    assert {(method.upper(), path) for path, method, _ in operations()} == load()[1]
    assert len(load()[1]) >= 13


def test_it_has_the_parts_that_openapi_demands() -> None:
    assert load()[0]["openapi"] == "3.1.0"
    assert set(load()[0]["info"]) >= {"title", "version"}
    names = [operation["operationId"] for _, _, operation in operations()]
    assert len(names) == len(set(names))
    for path, method, operation in operations():
        assert operation["responses"], path
        assert all(
            re.fullmatch(r"[1-5]\d\d", status) and each["description"] for status, each in operation["responses"].items()
        )
        in_path = {each["name"] for each in operation["parameters"] if each["in"] == "path"}
        assert in_path == set(re.findall(r"\{(\w+)\}", path))
        assert all(each["required"] is True for each in operation["parameters"] if each["in"] == "path")
        assert ("requestBody" in operation) == (method in ("put", "post")), "every write has a body that is described"


def test_every_reference_leads_somewhere() -> None:
    schemas = load()[0]["components"]["schemas"]
    used = {
        each["$ref"].removeprefix("#/components/schemas/") for each in every(load()[0]) if isinstance(each.get("$ref"), str)
    }
    assert used <= set(schemas)
    assert {"ModelView", "StatusView", "NodeView", "ReplicaView", "ErrorView", "ScaleBody"} <= set(schemas)


def test_bodies_forbid_unknown_fields_in_the_document_too() -> None:
    for _, _, operation in operations():
        if "requestBody" in operation:
            reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
            schema = load()[0]["components"]["schemas"][reference.rpartition("/")[2]]
            assert schema["additionalProperties"] is False


def test_what_needs_a_token_says_so() -> None:
    open_paths = {path for path, _, operation in operations() if operation["security"] == []}
    assert open_paths == {"/healthz", "/readyz", "/metrics", "/openapi.json"}
    for path, _, operation in operations():
        if path not in open_paths:
            assert operation["security"] == [{"token": []}]
            assert {"401", "429", "503"} <= set(operation["responses"])


def test_the_document_is_made_from_the_table_alone() -> None:
    assert [route.path for route in with_document([])] == ["/openapi.json"]
    assert issubclass(ModelView, Shape)
    assert json.loads(json.dumps(load()[0])) == load()[0]
