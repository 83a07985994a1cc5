"""The aiohttp application for paths that are not hot."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from aiohttp import web
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from llmgw_base import metrics as base_metrics
from llmgw_router.account.figures import Family

Gather = Callable[[], Awaitable[list[Family]]]


def application(gather: Gather, registry: CollectorRegistry) -> web.Application:
    """``gather`` gives the figures of all workers, added up; ``registry`` holds those of this process."""

    async def metrics(request: web.Request) -> web.Response:
        families = await gather()
        collector = _Collector(families)
        registry.register(collector)
        try:
            body, content_type = base_metrics.render(registry, request.headers.get("Accept", ""))
        finally:
            registry.unregister(collector)
        return web.Response(body=body, headers={"Content-Type": content_type})

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    return app


class _Collector(Collector):
    def __init__(self, families: Iterable[Family]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return [_metric(each) for each in self._families]


def _metric(family: Family) -> Metric:
    if family.kind == "histogram":
        histogram = HistogramMetricFamily(family.name, family.help, labels=family.labels)
        for labels, values in family.samples:
            histogram.add_metric(labels, _buckets(family.bounds, values[:-1]), values[-1])
        return histogram
    kind = GaugeMetricFamily if family.kind == "gauge" else CounterMetricFamily
    metric = kind(family.name, family.help, labels=family.labels)
    for labels, values in family.samples:
        metric.add_metric(labels, values[0])
    return metric


def _buckets(bounds: tuple[float, ...], counts: list[float]) -> list[tuple[str, float]]:
    """Cumulative, as Prometheus wants them."""
    buckets = []
    total = 0.0
    for bound, count in zip([*map(str, bounds), "+Inf"], counts, strict=True):
        total += count
        buckets.append((bound, total))
    return buckets
