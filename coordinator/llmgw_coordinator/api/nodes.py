"""``/admin/v1/nodes``."""

from __future__ import annotations

from aiohttp import web

from llmgw_coordinator.api.context import Context
from llmgw_coordinator.api.present import node_views
from llmgw_coordinator.api.problems import not_found
from llmgw_coordinator.api.routes import Route, as_json
from llmgw_coordinator.api.shapes import NodeList, NodeView

_PATH = "/admin/v1/nodes"


class Nodes:
    def __init__(self, context: Context) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        return [
            Route("GET", _PATH, "listNodes", "All nodes of which anything is known", self._list, {200: NodeList}),
            Route("GET", _PATH + "/{node}", "getNode", "One node", self._get, {200: NodeView}, errors=(404,)),
        ]

    async def _list(self, request: web.Request) -> web.Response:
        return as_json(NodeList(nodes=node_views(self._context.facts())))

    async def _get(self, request: web.Request) -> web.Response:
        name = request.match_info["node"]
        found = next((each for each in node_views(self._context.facts()) if each.name == name), None)
        if found is None:
            raise not_found("node", name, see="node list")
        return as_json(found)
