"""Prometheus metrics: one registry per program, handed to the parts that count. There is no global registry."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge, PlatformCollector, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST as PLAIN
from prometheus_client.exposition import generate_latest as render_plain
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as OPENMETRICS
from prometheus_client.openmetrics.exposition import generate_latest as render_openmetrics


def new_registry(program: str, version: str) -> CollectorRegistry:
    """A registry with the process's own figures and ``llmgw_build_info``."""
    registry = CollectorRegistry(auto_describe=True)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    info = Gauge("llmgw_build_info", "Always 1; the labels tell program and version", ["program", "version"], registry=registry)
    info.labels(program, version).set(1)
    return registry


def render(registry: CollectorRegistry, accept: str = "") -> tuple[bytes, str]:
    """The metrics as text and their content type, OpenMetrics where the scraper accepts it."""
    if "application/openmetrics-text" in accept:
        return render_openmetrics(registry), OPENMETRICS  # type: ignore[no-untyped-call]  # prometheus_client leaves it untyped
    return render_plain(registry), PLAIN
