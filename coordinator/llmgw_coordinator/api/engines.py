"""``/admin/v1/engines``: the fleet's settings; ``/admin/v1/nodes/{node}/engines``: what agents installed, relayed from them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from aiohttp import web
from grpc import aio

from llmgw_base.etcd.timers import done_within, reap
from llmgw_coordinator.api import audit
from llmgw_coordinator.api.agents import Agents, Line, unreachable
from llmgw_coordinator.api.bodies import checked, read_object
from llmgw_coordinator.api.context import Context
from llmgw_coordinator.api.engines_shapes import (
    EnginesView,
    InstallBody,
    NodeEngines,
    RemovedEnginesView,
    SetEngineBody,
    SilentNode,
    UnsetEngineBody,
    engine_step,
    node_engine,
)
from llmgw_coordinator.api.problems import ApiError, not_found
from llmgw_coordinator.api.relay import relay_lines
from llmgw_coordinator.api.routes import Query, Route, as_json
from llmgw_coordinator.engine_settings import EngineStore, digest, with_version, without
from llmgw_proto import engines_pb2 as pb
from llmgw_proto.engines_pb2_grpc import EnginesStub
from llmgw_proto.records.engine import INSTALLABLE, EngineOverride, EngineSettings

#: Seconds that one agent may take to list or remove; an environment has tens of thousands of files. Clients wait for 30 s.
ANSWER_LIMIT = 25.0
#: Nodes that are asked at the same time for the whole fleet, and seconds for all of them.
AT_ONCE = 64
FLEET_LIMIT = 28.0
#: The longest that an installation is followed.
LONGEST = 86_400.0
_FLEET = "/admin/v1/engines"
_NODE = "/admin/v1/nodes/{node}/engines"
_ERRORS = (404, 409, 422, 502)
#: As for models: how long an answer waits for the mirror to show what was written.
_ECHO_SECONDS = 2.0


class Engines:
    def __init__(self, context: Context, agents: Agents) -> None:
        self._context, self._agents = context, agents
        self._settings = EngineStore(context.store, context.clock)

    def routes(self) -> list[Route]:
        one = _FLEET + "/{engine}"
        return [
            Route(
                "GET",
                _FLEET,
                "listEngines",
                "The fleet's settings for engines, and what all live nodes have installed",
                self._fleet,
                {200: EnginesView},
                query=(Query("nodes", {"type": "integer", "enum": [0, 1], "default": 1}, "0: the settings alone"),),
            ),
            Route(
                "POST",
                one + "/set",
                "setEngine",
                "Sets a version for all nodes or for some, and how it is had",
                self._set,
                {200: EngineSettings},
                SetEngineBody,
                errors=(400, 404, 409, 413, 422),
            ),
            Route(
                "POST",
                one + "/unset",
                "unsetEngine",
                "Takes back a version for some nodes, how a version is had, or all settings of the engine",
                self._unset,
                {200: EngineSettings},
                UnsetEngineBody,
                errors=(400, 404, 409, 422),
            ),
            Route("GET", _NODE, "nodeEngines", "The engines on one node", self._node, {200: NodeEngines}, errors=(404, 502)),
            Route(
                "POST",
                _NODE + "/{engine}/install",
                "installEngine",
                "Install an engine ahead of time, or again; one JSON object a line, the last with the result or an error",
                self._install,
                {200: None},
                InstallBody,
                errors=_ERRORS,
                content_type="application/x-ndjson",
                limit=LONGEST,
            ),
            Route(
                "DELETE",
                _NODE + "/{engine}",
                "removeEngine",
                "Remove a version of an engine, or all that nothing runs from",
                self._remove,
                {200: RemovedEnginesView},
                query=(Query("version", {"type": "string"}, "only this one; it is an error if it is in use"),),
                errors=_ERRORS,
                limit=ANSWER_LIMIT + 5,
            ),
        ]

    # --- the fleet's settings -----------------------------------------------------------------------------------------

    async def _set(self, request: web.Request) -> web.Response:
        engine = _installable(request)
        body = checked(SetEngineBody, await read_object(request))
        if engine != "llamacpp" and (body.archive is not None or body.build):
            raise ApiError(422, "invalid", f"{engine} is made of packages, not of programs", "leave out archive and build")
        self._context.require_writable()
        override = EngineOverride(version=body.version, gpu_class=body.gpu_class, labels=body.labels)
        release = body.release(digest(body.lock) if body.lock is not None else None) if body.says_how else None
        locks = {body.version: body.lock} if release is not None else None
        stored = await self._settings.change(
            engine, lambda old: with_version(old, override, release, release_only=body.release_only), locks
        )
        assert stored is not None
        audit.tell(request, engine=engine, version=body.version, gpu_class=body.gpu_class, labels=body.labels)
        await self._shown(stored)
        return as_json(stored)

    async def _unset(self, request: web.Request) -> web.Response:
        engine = _installable(request)
        body = checked(UnsetEngineBody, await read_object(request))
        self._context.require_writable()
        audit.tell(request, engine=engine, version=body.version, gpu_class=body.gpu_class, labels=body.labels)
        if body.version is None and body.gpu_class is None and not body.labels:
            if not await self._settings.delete(engine):
                raise _nothing_set(engine)
            await self._context.mirror.shows(lambda view: engine not in view.engines, within=_ECHO_SECONDS)
            return as_json(EngineSettings(engine=engine))

        def change(old: EngineSettings) -> EngineSettings | None:
            if body.version is None:
                return without(old, body.gpu_class, body.labels)
            if body.version not in old.releases:
                return None
            if body.version in old.versions():
                raise ApiError(
                    409, "in_use", f"{engine} {body.version} is what some nodes are told to run", "set another version first"
                )
            kept = {name: each for name, each in old.releases.items() if name != body.version}
            return old.model_copy(update={"releases": kept})

        stored = await self._settings.change(engine, change, {body.version: None} if body.version is not None else None)
        if stored is None:
            raise _nothing_set(engine)
        await self._shown(stored)
        return as_json(stored)

    async def _shown(self, stored: EngineSettings) -> None:
        await self._context.mirror.shows(
            lambda view: (
                (known := view.engines.get(stored.engine)) is not None and known.record.updated_at >= stored.updated_at
            ),
            within=_ECHO_SECONDS,
        )

    # --- on nodes -----------------------------------------------------------------------------------------------------

    async def _fleet(self, request: web.Request) -> web.Response:
        view = self._context.facts().view
        nodes = sorted(view.alive) if request.query.get("nodes", "1") != "0" else []
        found: dict[str, NodeEngines] = {}
        silent: dict[str, str] = dict.fromkeys(nodes, f"not asked within {FLEET_LIMIT:g} s")
        turns = asyncio.Semaphore(AT_ONCE)

        async def ask(node: str) -> None:
            async with turns:
                try:
                    found[node] = await self._list(node)
                    del silent[node]
                except ApiError as error:
                    silent[node] = error.message

        asked = asyncio.gather(*(ask(node) for node in nodes))
        try:
            if await done_within(self._context.clock, asked, FLEET_LIMIT):
                asked.result()
        finally:
            await reap(asked)
        return as_json(
            EnginesView(
                settings=[stored.record for _, stored in sorted(view.engines.items())],
                nodes=[found[node] for node in sorted(found)],
                unreachable=[SilentNode(node=node, cause=cause) for node, cause in sorted(silent.items())],
            )
        )

    async def _node(self, request: web.Request) -> web.Response:
        return as_json(await self._list(request.match_info["node"]))

    async def _list(self, node: str) -> NodeEngines:
        found = await self._ask(node, lambda stub: stub.List, pb.ListEnginesRequest())
        return NodeEngines(node=node, folder=found.folder, engines=[node_engine(each) for each in found.engines])

    async def _install(self, request: web.Request) -> web.StreamResponse:
        engine, node = request.match_info["engine"], request.match_info["node"]
        body = checked(InstallBody, await read_object(request))
        audit.tell(request, node=node, engine=engine, version=body.version, reinstall=body.reinstall)
        wish = pb.InstallEngineRequest(engine=engine, version=body.version or "", reinstall=body.reinstall)
        async with self._agents.line(node) as line:
            steps = _stub(line).Install(wish, metadata=line.metadata)
            return await relay_lines(
                request, steps, engine_step, lambda error: _answer(node, error), self._context.clock, line.gone
            )

    async def _remove(self, request: web.Request) -> web.Response:
        engine, version = request.match_info["engine"], request.query.get("version", "")
        wish = pb.RemoveEngineRequest(engine=engine, version=version)
        removed = await self._ask(request.match_info["node"], lambda stub: stub.Remove, wish)
        audit.tell(request, node=request.match_info["node"], engine=engine, versions=list(removed.versions))
        return as_json(RemovedEnginesView(engine=engine, versions=list(removed.versions), freed_bytes=removed.freed_bytes))

    async def _ask(self, node: str, call: Callable[[Any], Callable[..., Awaitable[Any]]], wish: Any) -> Any:
        async with self._agents.line(node) as line:
            try:
                return await call(_stub(line))(wish, metadata=line.metadata, timeout=ANSWER_LIMIT)
            except aio.AioRpcError as error:
                raise _answer(node, error) from error


def _stub(line: Line) -> Any:
    return EnginesStub(line.channel)  # type: ignore[no-untyped-call]  # generated


def _installable(request: web.Request) -> str:
    engine = request.match_info["engine"]
    if engine not in INSTALLABLE:
        raise not_found("engine", engine, see="engine list")
    return engine


def _nothing_set(engine: str) -> ApiError:
    return ApiError(404, "setting_not_found", f"nothing like that is set for {engine}", "see `llmgwctl engine settings`")


def _answer(node: str, error: aio.AioRpcError) -> ApiError:
    said = str(error.details())
    match error.code():
        case grpc.StatusCode.NOT_FOUND:
            return ApiError(404, "engine_not_found", f"node {node}: {said}", "see `llmgwctl engine list` for what there is")
        case grpc.StatusCode.FAILED_PRECONDITION:
            return ApiError(409, "in_use", f"node {node}: {said}", "remove or move the models that use it first")
        case grpc.StatusCode.ABORTED:
            return ApiError(409, "install_failed", f"node {node}: {said}", "see the message, and the log that it names")
        case grpc.StatusCode.UNIMPLEMENTED:
            return ApiError(
                502, "agent_too_old", f"the agent of node {node} does not know this call", "update llmgw-agent there"
            )
        case code:
            return unreachable(node, f"{code.name.lower()}: {said}")
