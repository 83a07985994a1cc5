"""Wires the coordinator together, runs it, and takes it down in the right order: it steps down before anything else."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from pathlib import Path

import grpc

from llmgw_base import net
from llmgw_base.clock import Clock, SystemClock
from llmgw_base.config import ConfigError, TlsSection
from llmgw_base.etcd.api import Store
from llmgw_base.etcd.client import EtcdStore
from llmgw_base.lifecycle import Stop
from llmgw_base.notify import Notifier
from llmgw_coordinator.api.context import Context
from llmgw_coordinator.api.server import Guard, Server, all_routes, make_app, with_document
from llmgw_coordinator.api.throttle import Throttle
from llmgw_coordinator.api.tokens import TokenCheck, load_or_create
from llmgw_coordinator.config import CoordinatorConfig
from llmgw_coordinator.leader.cluster import require_known_schema
from llmgw_coordinator.leader.election import Election
from llmgw_coordinator.leader.loop import Reconciler
from llmgw_coordinator.metrics import Metrics
from llmgw_coordinator.specs import Specs
from llmgw_coordinator.state import Mirror
from llmgw_proto import __version__
from llmgw_proto.records import CoordinatorRecord

logger = logging.getLogger(__name__)


class App:
    def __init__(self, config: CoordinatorConfig, clock: Clock | None = None) -> None:
        self._config = config
        self._clock = clock or SystemClock()

    async def run(self, stop: Stop, notifier: Notifier) -> None:
        """Until asked to stop.

        Raises:
            ConfigError: something in the configuration cannot be used.
            StoreError: etcd cannot be reached at the start, or is not to be used.
        """
        config = self._config
        listen = net.parse_listen(config.listen)
        net.require_safe(listen, tls=config.tls is not None, insecure=config.insecure)
        tls = server_tls(config.tls) if config.tls is not None else None
        credentials = agent_credentials(config.tls) if config.tls is not None else None
        token = load_or_create(config.token_path)
        sock = net.bind(listen)
        try:
            store = await EtcdStore.connect(config.etcd, clock=self._clock, trial=config.etcd.trial)
        except BaseException:
            sock.close()
            raise
        try:
            await self._serve(store, sock, tls, credentials, token, stop, notifier)
        finally:
            sock.close()
            await store.close()

    async def _serve(
        self,
        store: Store,
        sock: socket.socket,
        tls: ssl.SSLContext | None,
        credentials: grpc.ChannelCredentials | None,
        token: str,
        stop: Stop,
        notifier: Notifier,
    ) -> None:
        config, clock = self._config, self._clock
        metrics = Metrics()
        mirror = Mirror(store, clock)
        election = Election(store, clock, self._record(sock, secure=tls is not None), config.leader_ttl)
        reconciler = Reconciler(
            store,
            mirror,
            election,
            clock,
            config.settings,
            cluster_name=config.cluster_name,
            observe_seconds=metrics.observe_planning,
        )
        election.on_change(lambda: notifier.status("leads" if election.term is not None else "stands by"))
        context = Context(store, mirror, election, reconciler, Specs(store), clock)
        guard = Guard(TokenCheck(token), Throttle(config.token_failures_per_minute), clock)
        routes = with_document(all_routes(context, metrics, credentials))
        server = Server(make_app(routes, guard, context, metrics.requests), sock, tls)
        await server.start()
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(mirror.run(), name="mirror"),
                    group.create_task(_stand_when_known(mirror, election), name="election"),
                    group.create_task(reconciler.run(), name="reconciler"),
                    group.create_task(_watch_schema(mirror), name="schema"),
                ]
                notifier.ready()
                logger.info("serving the admin API", extra={"fields": {"address": self._address(sock, secure=tls is not None)}})
                reason = await stop.wait()
                notifier.stopping()
                logger.info("stopping", extra={"fields": {"reason": reason}})
                await election.step_down()
                await server.stop()
                for task in tasks:
                    task.cancel()
        finally:
            await server.stop()

    def _record(self, sock: socket.socket, *, secure: bool) -> CoordinatorRecord:
        return CoordinatorRecord(
            id=self._config.id,
            address=self._address(sock, secure=secure),
            version=__version__,
            started_at=self._clock.wall(),
        )

    def _address(self, sock: socket.socket, *, secure: bool) -> str:
        if self._config.advertise is not None:
            return self._config.advertise
        host, port = sock.getsockname()[:2]
        if host in ("0.0.0.0", "::"):  # noqa: S104 - compared with, not bound to
            host = socket.gethostname()
        return f"{'https' if secure else 'http'}://{net.Listen(host, port)}"


async def _stand_when_known(mirror: Mirror, election: Election) -> None:
    """Nobody stands for election who does not know yet what there is, or must not touch it."""
    await mirror.synced()
    cluster = mirror.view().cluster
    if cluster is not None:
        require_known_schema(cluster)
    await election.run()


async def _watch_schema(mirror: Mirror) -> None:
    """Ends the program when the cluster becomes one that this version must not touch."""
    changed = asyncio.Event()
    mirror.on_change(changed.set)
    while True:
        await changed.wait()
        changed.clear()
        cluster = mirror.view().cluster
        if cluster is not None:
            require_known_schema(cluster)


def server_tls(section: TlsSection) -> ssl.SSLContext:
    """
    Raises:
        ConfigError: the certificate or key cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(section.cert, section.key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"tls: certificate {section.cert} with key {section.key} cannot be used: {error}") from error
    return context


def agent_credentials(section: TlsSection) -> grpc.ChannelCredentials:
    """
    Raises:
        ConfigError: one of the files cannot be read.
    """
    files = [_read(section.ca, "ca"), _read(section.key, "key"), _read(section.cert, "cert")]
    made: grpc.ChannelCredentials = grpc.ssl_channel_credentials(*files)
    return made


def _read(path: Path, key: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"tls.{key}: {path} cannot be read: {error.strerror}") from error
