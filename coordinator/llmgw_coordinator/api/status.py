"""``/admin/v1/status``: the whole cluster on one page."""

from __future__ import annotations

from aiohttp import web

from llmgw_coordinator.api.context import Context
from llmgw_coordinator.api.present import model_views, summary
from llmgw_coordinator.api.routes import Route, as_json
from llmgw_coordinator.api.shapes import ClusterView, CoordinatorView, NodeCounts, RouterView, StatusView


class Status:
    def __init__(self, context: Context) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        return [Route("GET", "/admin/v1/status", "getStatus", "The cluster on one page", self._get, {200: StatusView})]

    async def _get(self, request: web.Request) -> web.Response:
        facts = self._context.facts()
        view = facts.view
        leader = view.leader
        cluster = view.cluster
        status = StatusView(
            cluster=ClusterView(id=cluster.id, name=cluster.name) if cluster is not None else None,
            leader=leader,
            stale=facts.stale_for is not None,
            coordinators=[
                CoordinatorView(
                    id=each.id, address=each.address, version=each.version, started_at=each.started_at, leader=each.id == leader
                )
                for each in (view.coordinators[key].record for key in sorted(view.coordinators))
            ],
            routers=[
                RouterView(id=each.id, address=each.address, version=each.version, models=each.models)
                for each in (view.routers[key].record for key in sorted(view.routers))
            ],
            nodes=NodeCounts(total=len(view.nodes), alive=len(view.breathing)),
            models=[summary(model) for model in model_views(facts)],
            problems=self._context.problems(),
        )
        return as_json(status)
