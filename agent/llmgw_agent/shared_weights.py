"""The node's part in sharing weights: the listener that other agents fetch from, and the fleet that this one asks."""

from __future__ import annotations

import contextlib
import hmac
import logging
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Self

import aiohttp
from aiohttp import web

from llmgw_agent.config import AgentConfig
from llmgw_agent.publisher import Publisher
from llmgw_agent.weights import WeightStore, peer_app
from llmgw_agent.weights.fleet import Fleet, Membership
from llmgw_base import net
from llmgw_base.clock import Clock
from llmgw_base.config import ConfigError, TlsSection
from llmgw_base.etcd.api import Store
from llmgw_base.secrets import weights_token

KEY = "weights.peers.listen"
logger = logging.getLogger(__name__)


class SharedWeights:
    """Without it (``fleet`` None) the node asks nobody and gives nothing."""

    def __init__(self, config: AgentConfig, clock: Clock, fleet: Fleet | None) -> None:
        self._config, self._clock, self.fleet = config, clock, fleet
        self._secret: str | None = None
        self._url: str | None = None

    @classmethod
    def of(cls, config: AgentConfig, etcd: Store, session: aiohttp.ClientSession, clock: Clock) -> Self:
        """
        Raises:
            ConfigError: a certificate cannot be read.
        """
        settings = config.weights.peers
        if not settings.enabled:
            return cls(config, clock, None)
        tls = client_tls(config.tls) if config.tls is not None else None
        return cls(config, clock, Fleet(config.node.name, etcd, session, clock, patience=settings.wait_seconds, tls=tls))

    @contextlib.asynccontextmanager
    async def serve(self, store: WeightStore) -> AsyncIterator[None]:
        """Gives files while it is entered.

        Raises:
            ConfigError: ``weights.peers.listen`` cannot be used. Without that setting an address that cannot be used is
                logged, and this node only takes.
        """
        listen = self._listen() if self.fleet is not None else None
        if listen is None:
            yield
            return
        tls = server_tls(self._config.tls) if self._config.tls is not None else None
        try:
            sock = net.bind(listen, key=KEY)
        except (ConfigError, OSError) as error:
            if self._config.weights.peers.listen is not None:
                raise ConfigError(str(error)) from error
            logger.warning("weights are not given to other agents", extra={"fields": {"cause": str(error)}})
            yield
            return
        settings = self._config.weights.peers
        app = peer_app(
            store,
            clock=self._clock,
            authorize=self._known,
            bytes_per_second=settings.rate,
            max_streams=settings.max_streams,
        )
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        try:
            await runner.setup()
            await web.SockSite(runner, sock, ssl_context=tls).start()
            wildcard = listen.host in ("0.0.0.0", "::")  # noqa: S104 - read, not bound
            host = self._config.node.address if wildcard else listen.host
            self._url = f"http{'s' if tls else ''}://{net.Listen(host, sock.getsockname()[1])}"
            logger.info("weights are given to other agents", extra={"fields": {"url": self._url}})
            yield
        finally:
            await runner.cleanup()
            sock.close()

    def join(self, publisher: Publisher, secret: str) -> None:
        """The agent is in a cluster: from now on it asks, and others may ask it."""
        self._secret = secret
        if self.fleet is not None:
            self.fleet.join(Membership(publisher, secret, self._url))

    async def run(self, store: WeightStore) -> None:
        """Tells which weights are here. For ever."""
        if self.fleet is not None:
            await self.fleet.run(store.contents)

    def _listen(self) -> net.Listen | None:
        config = self._config
        if config.weights.peers.listen is not None:
            return net.parse_listen(config.weights.peers.listen, key=KEY)
        listen = net.Listen(config.node.address, 0)
        try:
            net.require_safe(listen, tls=config.tls is not None, insecure=config.insecure, key=KEY)
        except ConfigError:
            logger.info("weights are not given to other agents, since there is neither tls: nor insecure: true")
            return None
        return listen

    async def _known(self, request: web.Request) -> bool:
        if self._secret is None:
            return False
        token = weights_token(self._secret, self._config.node.name)
        given = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        return hmac.compare_digest(given, f"Bearer {token}".encode())


def server_tls(files: TlsSection) -> ssl.SSLContext:
    """Demands a certificate of the cluster's authority. Raises ConfigError."""
    return _tls(files, ssl.Purpose.CLIENT_AUTH, lambda context: setattr(context, "verify_mode", ssl.CERT_REQUIRED))


def client_tls(files: TlsSection) -> ssl.SSLContext:
    """Believes only the cluster's authority, checks the name, and presents the node's own certificate. Raises ConfigError."""
    return _tls(files, ssl.Purpose.SERVER_AUTH, lambda context: None)


def _tls(files: TlsSection, purpose: ssl.Purpose, more: Callable[[ssl.SSLContext], None]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(purpose, cafile=str(files.ca))
        context.load_cert_chain(files.cert, files.key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"tls: {files.ca}, {files.cert} or {files.key} cannot be used: {error}; correct them") from error
    more(context)
    return context
