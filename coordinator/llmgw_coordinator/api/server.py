"""The aiohttp application: the table of routes behind a token, with every error in one shape."""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import ssl
from collections.abc import Sequence

import grpc
from aiohttp import web
from prometheus_client import Counter

from llmgw_base.clock import Clock
from llmgw_base.etcd.errors import StoreError
from llmgw_coordinator.api import audit
from llmgw_coordinator.api.agents import Agents
from llmgw_coordinator.api.context import Context
from llmgw_coordinator.api.engines import Engines
from llmgw_coordinator.api.fabrics import Fabrics
from llmgw_coordinator.api.hardware import Hardware
from llmgw_coordinator.api.health import Health
from llmgw_coordinator.api.logs import Logs
from llmgw_coordinator.api.models import Models
from llmgw_coordinator.api.nodes import Nodes
from llmgw_coordinator.api.openapi import document
from llmgw_coordinator.api.problems import ApiError, from_http, from_store, unavailable
from llmgw_coordinator.api.replicas import Replicas
from llmgw_coordinator.api.replicas_ask import ReplicasAsk
from llmgw_coordinator.api.routes import Handler, Route
from llmgw_coordinator.api.status import Status
from llmgw_coordinator.api.throttle import Throttle
from llmgw_coordinator.api.tokens import TokenCheck
from llmgw_coordinator.api.weights import Weights
from llmgw_coordinator.errors import SpecConflictError
from llmgw_coordinator.metrics import Metrics

BODY_LIMIT = 2**20
#: What is logged for a client that did not wait for its answer.
CLIENT_GONE = 499
#: Seconds that open log streams get when the program stops.
SHUTDOWN_LIMIT = 1.0
_READS = ("GET", "HEAD")

logger = logging.getLogger(__name__)


def all_routes(context: Context, metrics: Metrics, credentials: grpc.ChannelCredentials | None) -> list[Route]:
    """Every route but ``/openapi.json``, which tells of them."""
    agents = Agents(context, credentials)
    resources = (
        Health(context, metrics),
        Status(context),
        Nodes(context),
        Models(context),
        Replicas(context),
        ReplicasAsk(context, agents),
        Fabrics(context),
        Logs(context, agents),
        Hardware(agents),
        Engines(context, agents),
        Weights(context, agents),
    )
    return [route for resource in resources for route in resource.routes()]


def with_document(routes: Sequence[Route]) -> list[Route]:
    async def openapi(request: web.Request) -> web.Response:
        return web.json_response(described)

    own = Route("GET", "/openapi.json", "openapi", "This document", openapi, {200: None}, token=False)
    complete = [*routes, own]
    described = document(complete)
    return complete


class Guard:
    """Lets nobody through without the token, and slows down who guesses."""

    def __init__(self, check: TokenCheck, throttle: Throttle, clock: Clock) -> None:
        self._check = check
        self._throttle = throttle
        self._clock = clock

    def admit(self, request: web.Request) -> None:
        """
        Raises:
            ApiError: 401, or 429 after too many wrong tokens; then even the right one is refused for a while, since
                otherwise guessing could go on.
        """
        address = request.remote or ""
        now = self._clock.monotonic()
        wait = self._throttle.wait(address, now)
        if wait > 0:
            raise ApiError(
                429,
                "too_many_failures",
                f"{address} has tried too many wrong tokens",
                f"wait {math.ceil(wait)} s, then use the token in the coordinator's token file",
                headers={"Retry-After": str(math.ceil(wait))},
            )
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._check(token.strip()):
            return
        # Who sends no token at all has misread the manual; only tries count.
        if token:
            self._throttle.failed(address, now)
            logger.warning("wrong token", extra={"fields": {"client": address}})
        raise ApiError(
            401,
            "unauthorized",
            "the token is wrong" if token else "a token is missing",
            "send Authorization: Bearer <token>; the token is in the coordinator's token file",
            headers={"WWW-Authenticate": "Bearer"},
        )


def make_app(routes: Sequence[Route], guard: Guard, context: Context, requests: Counter) -> web.Application:
    @web.middleware
    async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            response = await _answer(request, handler)
        except web.HTTPException as error:
            response = from_http(error).response()
        except ApiError as error:
            response = error.response()
            if request.method not in _READS:
                audit.record(request, error.status, error.code)
        except (asyncio.CancelledError, ConnectionResetError) as error:
            if request.method not in _READS:
                audit.record(request, CLIENT_GONE, "the client left; the write may have been made")
            if isinstance(error, ConnectionResetError):
                # It left between two writes, before this task could be told: the same, and nobody's fault.
                raise asyncio.CancelledError from error
            raise
        else:
            if request.method not in _READS:
                audit.record(request, response.status, "done")
        requests.labels(request.method if request.method in _METHODS else "other", str(response.status)).inc()
        return response

    async def _answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except StoreError as error:
            raise from_store(error) from error
        except TimeoutError as error:
            raise unavailable("no answer in time, the write may yet happen") from error
        except SpecConflictError as error:
            raise ApiError(409, "conflict", str(error), "try again") from error
        except (web.HTTPException, ApiError, ConnectionResetError):
            raise
        except Exception as error:
            logger.exception("a request failed", extra={"fields": {"path": request.rel_url.raw_path}})
            raise ApiError(
                500, "internal_error", f"a fault of the coordinator: {type(error).__name__}", "see its log and report it"
            ) from error

    async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
        response.headers["Server"] = "llmgw"
        stale = context.mirror.stale_for
        if stale is not None and request.method in _READS and context.mirror.is_synced:
            response.headers["x-llmgw-stale"] = f"{stale:.1f}"

    app = web.Application(middlewares=[answer_errors], client_max_size=BODY_LIMIT)
    app.on_response_prepare.append(add_headers)
    for route in routes:
        app.router.add_route(route.method, route.path, _guarded(route, guard))
    return app


_METHODS = ("GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS", "PATCH")


def _guarded(route: Route, guard: Guard) -> Handler:
    async def guarded(request: web.Request) -> web.StreamResponse:
        if route.token:
            guard.admit(request)
        if route.method in _READS:
            return await route.handler(request)
        async with asyncio.timeout(route.limit):
            return await route.handler(request)

    return guarded


class Server:
    """The running HTTP server."""

    def __init__(self, app: web.Application, sock: socket.socket, tls: ssl.SSLContext | None) -> None:
        # Cancelled handlers: a client that leaves a log it follows must end the call to the agent.
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=SHUTDOWN_LIMIT)
        self._sock = sock
        self._tls = tls

    async def start(self) -> None:
        await self._runner.setup()
        await web.SockSite(self._runner, self._sock, ssl_context=self._tls).start()

    async def stop(self) -> None:
        await self._runner.cleanup()
