"""The page that Prometheus reads: ``GET /metrics``, and ``/healthz`` for whoever asks whether the agent answers."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable

from aiohttp import web
from prometheus_client import CollectorRegistry

from llmgw_base import net
from llmgw_base.clock import Clock
from llmgw_base.config import ConfigError, TlsSection
from llmgw_base.metrics import render

AGAIN_AFTER = 30.0
logger = logging.getLogger(__name__)


def make_app(registry: CollectorRegistry) -> web.Application:
    async def metrics(request: web.Request) -> web.Response:
        body, content_type = render(registry, request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def healthz(request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/healthz", healthz)
    return app


async def serve_metrics(
    listen: net.Listen,
    tls: TlsSection | None,
    registry: CollectorRegistry,
    clock: Clock,
    ready: Callable[[str], None] = lambda _: None,
) -> None:
    """Serves until cancelled. A port that is taken harms nobody but who wants to see figures: it is said, and tried again.

    ``ready`` hears the URL once it is served.
    """
    said = ""
    while True:
        try:
            sock = net.bind(listen, key="metrics.listen")
            context = _tls(tls)
        except (ConfigError, OSError) as error:
            if str(error) != said:
                said = str(error)
                logger.warning("metrics are not served", extra={"fields": {"cause": said}})
            await clock.sleep(AGAIN_AFTER)
            continue
        runner = web.AppRunner(make_app(registry), access_log=None, shutdown_timeout=0.5)
        try:
            await runner.setup()
            await web.SockSite(runner, sock, ssl_context=context).start()
            url = f"http{'s' if context else ''}://{net.Listen(listen.host, sock.getsockname()[1])}/metrics"
            logger.info("metrics are served", extra={"fields": {"url": url}})
            ready(url)
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()
            sock.close()


def _tls(section: TlsSection | None) -> ssl.SSLContext | None:
    if section is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(section.cert, section.key)
    return context
