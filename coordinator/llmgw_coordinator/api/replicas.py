"""``/admin/v1/replicas``; their logs are in :mod:`llmgw_coordinator.api.logs`."""

from __future__ import annotations

from aiohttp import web

from llmgw_coordinator.api.context import Context
from llmgw_coordinator.api.present import replica_views
from llmgw_coordinator.api.problems import not_found
from llmgw_coordinator.api.routes import Query, Route, as_json
from llmgw_coordinator.api.shapes import ReplicaList, ReplicaView

_PATH = "/admin/v1/replicas"


class Replicas:
    def __init__(self, context: Context) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        only = Query("model", {"type": "string"}, "only this model's")
        return [
            Route("GET", _PATH, "listReplicas", "All replicas", self._list, {200: ReplicaList}, query=(only,)),
            Route("GET", _PATH + "/{replica}", "getReplica", "One replica", self._get, {200: ReplicaView}, errors=(404,)),
        ]

    async def _list(self, request: web.Request) -> web.Response:
        model = request.query.get("model")
        found = replica_views(self._context.facts())
        chosen = [found[key] for key in sorted(found) if model is None or found[key].model == model]
        return as_json(ReplicaList(replicas=chosen))

    async def _get(self, request: web.Request) -> web.Response:
        name = request.match_info["replica"]
        found = replica_views(self._context.facts()).get(name)
        if found is None:
            raise not_found("replica", name, see="replica list")
        return as_json(found)
