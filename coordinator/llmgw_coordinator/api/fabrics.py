"""``/admin/v1/fabrics``: the maps of InfiniBand subnets that agents have made."""

from __future__ import annotations

from aiohttp import web

from llmgw_coordinator.api.context import Context
from llmgw_coordinator.api.problems import not_found
from llmgw_coordinator.api.routes import Route, as_json
from llmgw_coordinator.api.shapes import FabricList
from llmgw_proto.records import FabricMapRecord

_PATH = "/admin/v1/fabrics"


class Fabrics:
    def __init__(self, context: Context) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        return [
            Route("GET", _PATH, "listFabrics", "The maps of all InfiniBand subnets", self._list, {200: FabricList}),
            Route(
                "GET", _PATH + "/{subnet}", "getFabric", "One subnet's map", self._get, {200: FabricMapRecord}, errors=(404,)
            ),
        ]

    async def _list(self, request: web.Request) -> web.Response:
        fabrics = self._context.facts().view.fabrics
        return as_json(FabricList(fabrics=[fabrics[subnet].record for subnet in sorted(fabrics)]))

    async def _get(self, request: web.Request) -> web.Response:
        name = request.match_info["subnet"]
        found = self._context.facts().view.fabrics.get(name)
        if found is None:
            raise not_found("fabric", name, see="fabric list")
        return as_json(found.record)
