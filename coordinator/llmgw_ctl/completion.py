"""Completes names by asking the coordinator; says nothing when it does not answer within a second."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import typer

from llmgw_ctl.errors import CtlError

if TYPE_CHECKING:
    from llmgw_ctl.client import AdminClient

SECONDS = 1.0
Candidates = list[tuple[str, str]]


def engines(incomplete: str) -> list[str]:
    from typing import get_args

    from llmgw_proto.records.model import EngineName

    return [name for name in get_args(EngineName) if name.startswith(incomplete)]


def installable_engines(incomplete: str) -> list[str]:
    from llmgw_proto.records.engine import INSTALLABLE

    return [name for name in INSTALLABLE if name.startswith(incomplete)]


def models(ctx: typer.Context, incomplete: str) -> Candidates:
    async def ask(client: AdminClient) -> Candidates:
        return [(each.get("name", ""), each.get("state", "")) for each in await client.models()]

    return _ask(ctx, incomplete, ask)


def nodes(ctx: typer.Context, incomplete: str) -> Candidates:
    async def ask(client: AdminClient) -> Candidates:
        return [(each.get("name", ""), "alive" if each.get("alive") else "gone") for each in await client.nodes()]

    return _ask(ctx, incomplete, ask)


def gpus(ctx: typer.Context, incomplete: str) -> Candidates:
    async def ask(client: AdminClient) -> Candidates:
        return [
            (gpu.get("uuid", ""), f"{gpu.get('gpu_class', '')} on {node.get('name')}")
            for node in await client.nodes()
            for gpu in (node.get("inventory") or {}).get("gpus", [])
        ]

    return _ask(ctx, incomplete, ask)


def fabrics(ctx: typer.Context, incomplete: str) -> Candidates:
    async def ask(client: AdminClient) -> Candidates:
        return [(each.get("subnet", ""), f"mapped by {each.get('mapper')}") for each in await client.fabrics()]

    return _ask(ctx, incomplete, ask)


def replicas(ctx: typer.Context, incomplete: str) -> Candidates:
    async def ask(client: AdminClient) -> Candidates:
        return [(each.get("id", ""), f"{each.get('model')} {each.get('state')}") for each in await client.replicas()]

    return _ask(ctx, incomplete, ask)


def weights(ctx: typer.Context, incomplete: str) -> Candidates:
    async def ask(client: AdminClient) -> Candidates:
        found = await client.weights()
        return [
            (each.get("source", ""), f"on {node.get('node')}") for node in found["nodes"] for each in node.get("weights", [])
        ]

    return _ask(ctx, incomplete, ask)


def _ask(ctx: typer.Context, incomplete: str, ask: Callable[[AdminClient], Coroutine[Any, Any, Candidates]]) -> Candidates:
    from llmgw_ctl.client import AdminClient
    from llmgw_ctl.connection import resolve

    async def run() -> Candidates:
        root = ctx.find_root().params
        target = resolve(
            ctx.params.get("server") or root.get("server"),
            ctx.params.get("token_file") or root.get("token_file"),
            os.environ,
        )
        async with asyncio.timeout(SECONDS), AdminClient(target, answer_seconds=SECONDS) as client:
            return await ask(client)

    try:
        found = asyncio.run(run())
    except (CtlError, TimeoutError):
        return []
    return sorted(each for each in found if each[0].startswith(incomplete))
