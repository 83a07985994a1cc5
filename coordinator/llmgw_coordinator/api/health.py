"""What monitoring asks: alive, ready, metrics. No token: they tell nothing that is secret."""

from __future__ import annotations

from aiohttp import web

from llmgw_base.metrics import render
from llmgw_coordinator.api.context import Context
from llmgw_coordinator.api.routes import Route, as_json
from llmgw_coordinator.api.shapes import Ready
from llmgw_coordinator.metrics import Metrics


class Health:
    def __init__(self, context: Context, metrics: Metrics) -> None:
        self._context = context
        self._metrics = metrics

    def routes(self) -> list[Route]:
        text = "text/plain"
        return [
            Route(
                "GET", "/healthz", "healthz", "The process answers", self._healthz, {200: None}, token=False, content_type=text
            ),
            Route(
                "GET",
                "/readyz",
                "readyz",
                "Whether reads can be answered, even from memory",
                self._readyz,
                {200: Ready, 503: Ready},
                token=False,
            ),
            Route("GET", "/metrics", "metrics", "For Prometheus", self._metrics_, {200: None}, token=False, content_type=text),
        ]

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        mirror = self._context.mirror
        ready = Ready(
            ready=mirror.is_synced, leader=self._context.election.term is not None, stale=mirror.stale_for is not None
        )
        return as_json(ready, status=200 if ready.ready else 503)

    async def _metrics_(self, request: web.Request) -> web.Response:
        if self._context.mirror.is_synced:
            leads = self._context.election.term is not None
            self._metrics.refresh(self._context.facts(), leads=leads, problems=len(self._context.problems()))
        body, content_type = render(self._metrics.registry, request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})
