"""The composition root of one worker: the only place that knows all parts."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import resource
import signal
import socket
import ssl

from llmgw_base import metrics as base_metrics
from llmgw_base import net
from llmgw_base.clock import Clock
from llmgw_base.config import ConfigError
from llmgw_base.etcd.api import Store
from llmgw_base.lifecycle import Stop
from llmgw_base.notify import Notifier
from llmgw_router import __version__, policies
from llmgw_router.account.access_log import AccessLog
from llmgw_router.account.ledger import Ledger
from llmgw_router.account.metrics import Metrics
from llmgw_router.account.workers import Workers
from llmgw_router.admission import keys as api_keys
from llmgw_router.admission.queue import WaitQueue
from llmgw_router.client.front import Front
from llmgw_router.config import RouterConfig
from llmgw_router.engine.pool import Pool
from llmgw_router.health import outlier
from llmgw_router.health.prober import Prober
from llmgw_router.health.watch import HealthWatch
from llmgw_router.ops import web
from llmgw_router.ops.gauges import gauges
from llmgw_router.ops.handover import Handover
from llmgw_router.ops.health import Health, Source
from llmgw_router.publish import Publisher
from llmgw_router.relay.core import Core
from llmgw_router.role import Role
from llmgw_router.table import static
from llmgw_router.table.directory import Directory, ModelState
from llmgw_router.table.etcd import EtcdSource

logger = logging.getLogger(__name__)

_SWEEP_SECONDS = 0.2
_OTHER_FILES = 40
"""Open files besides connections: the loop's, the log's, the store's, sockets that listen."""


class Worker:
    """``role`` is None for a router of one worker."""

    def __init__(self, config: RouterConfig, clock: Clock, role: Role | None = None) -> None:
        self.config = config
        self.clock = clock
        self.role = role
        self.folder = role.folder if role is not None else None
        self.index = role.index if role is not None else 0
        self.listen = net.parse_listen(config.listen)
        if role is not None:
            self.listen = net.Listen(self.listen.host, role.port)
        net.require_safe(self.listen, tls=config.tls is not None, insecure=config.insecure)
        self.keys = api_keys.load(config.api_keys) if config.api_keys is not None else None
        self.specs = static.parse_all(config.endpoints)
        self.tls = _tls(config)

    async def run(self, stop: Stop, notifier: Notifier) -> None:
        """Serves until asked to stop, then drains."""
        sock = net.bind(self.listen, reuse_port=self.folder is not None, backlog=4096)
        try:
            await self._serve(sock, stop, notifier)
        finally:
            sock.close()

    async def _serve(self, sock: socket.socket, stop: Stop, notifier: Notifier) -> None:
        config, clock = self.config, self.clock
        loop = asyncio.get_running_loop()
        metrics = Metrics()
        log = AccessLog(
            metrics, clock, errors_only=config.accounting.access_log == "errors", enabled=config.accounting.access_log != "off"
        )
        rules = outlier.Rules(
            config.health.failures,
            config.health.ejection_seconds,
            config.health.ejection_max_seconds,
            config.health.panic_percent,
        )
        pool = Pool(loop, connect_seconds=config.timeouts.connect, keep_alive_seconds=config.timeouts.engine_keep_alive)
        source_state = Source()
        directory = Directory(self._make_model, rules, pool.retire, worker_count(config) if self.role is not None else 1)
        usage = config.accounting.stream_usage
        core = Core(
            config,
            loop,
            clock.monotonic,
            directory,
            pool,
            metrics,
            Ledger(metrics, log, clock.wall),
            rules,
            random.Random(),  # noqa: S311 - spreads load, guards nothing
            usage == "always" or (usage == "auto" and self.keys is not None),
            set(),
            set(),
        )
        health = Health(directory, source_state, clock.monotonic, __version__)
        workers = Workers(self.folder, self.index, lambda: metrics.families(gauges(directory, front, source_state)))
        handover = Handover(web.application(workers.gather, base_metrics.new_registry("llmgw-router", __version__)))
        front = Front(
            config, core, self.keys, health, handover, connections=_connection_limit(config), started=int(clock.wall())
        )
        source = self._source(directory, source_state)
        watch = HealthWatch(
            core,
            Prober(loop, pool, timeout=config.health.probe_timeout, path=config.health.probe_path),
            clock,
            probe_all=config.health.probe_all if config.health.probe_all is not None else source is None,
            vanished_dead=source.vanished_dead if source is not None else lambda _: None,
        )
        directory.on_change.append(core.table_changed)
        directory.on_change.append(lambda _: watch.hurry())
        if source is None:
            directory.apply(self.specs)
            source_state.loaded = True
        else:
            source.warm()
        await handover.start()
        await workers.start()
        server = await loop.create_server(front.protocol, sock=sock, ssl=self.tls)
        port = sock.getsockname()[1]
        url = f"{'https' if self.tls else 'http'}://{net.Listen(self.listen.host, port)}"
        background = [
            loop.create_task(self._sweep(core, front), name="sweep"),
            loop.create_task(watch.run(), name="health"),
            loop.create_task(log.run(), name="access-log"),
        ]
        if source is not None:
            background.append(loop.create_task(self._cluster(source, workers, url), name="store"))
        loop.add_signal_handler(signal.SIGHUP, self._reload, front)
        if self.role is not None:
            loop.add_reader(self.role.life, self._orphaned, stop, self.role.life)
        # What lives now lives for ever; looking at it again in each collection would only cost time.
        gc.collect()
        gc.freeze()
        gc.set_threshold(10_000, 20, 50)
        notifier.ready()
        if self.folder is None:
            announce(self.config, url, len(self.specs))
        try:
            await self._until_stopped(stop, background)
            await self._drain(core, front, health, server)
        finally:
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            server.close()
            for connection in list(front.open):
                connection.transport.abort()
            await core.close()
            for replica in directory.table.replicas:
                for engine in list(replica.connections):
                    engine.close()
            await workers.stop()
            await handover.stop()

    def _make_model(self, name: str, wanted: str | None) -> ModelState:
        """The policy: the one this router is told to use for the model, else the model's own, else this router's default."""
        config = self.config
        chosen = config.policies.get(name) or wanted or config.policy
        if chosen not in policies.names():
            logger.warning(
                "model names an unknown policy; the router's default is used",
                extra={"fields": {"model": name, "policy": chosen}},
            )
            chosen = config.policy
        settings = policies.Settings(random.Random(), config.prefix_memory_bytes)  # noqa: S311 - spreads load, guards nothing
        return ModelState(name, policies.make(chosen, settings), wanted or chosen, WaitQueue(config.queue.length))

    # --- background ---------------------------------------------------------------------------------------------------

    async def _sweep(self, core: Core, front: Front) -> None:
        while True:
            await self.clock.sleep(_SWEEP_SECONDS)
            core.sweep()
            front.sweep()

    def _source(self, directory: Directory, state: Source) -> EtcdSource | None:
        if self.config.etcd is None:
            return None
        return EtcdSource(
            directory,
            state,
            self.clock,
            keep_seconds=self.config.health.keep_vanished_seconds,
            probe_seconds=self.config.health.probe_seconds * self.config.health.probe_failures,
            state_dir=self.config.state_dir,
        )

    async def _cluster(self, source: EtcdSource, workers: Workers, url: str) -> None:
        """Follows the store and, in the first worker, tells the cluster about this router."""
        section = self.config.etcd
        assert section is not None

        # It brings gRPC along, which a router without a cluster need not carry.
        from llmgw_base.etcd.client import EtcdStore

        async def connect() -> Store:
            return await EtcdStore.connect(section, clock=self.clock, trial=section.trial)

        following = asyncio.create_task(source.run(connect))
        try:
            store = await source.ready(following)
            if self.index > 0:
                await following
                return
            publisher = Publisher(
                store,
                self.clock,
                workers.gather,
                router_id=self.config.id or f"{socket.gethostname()}-{url.rpartition(':')[2]}",
                address=self.config.advertise or url,
                version=__version__,
            )
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(publisher.run())
                    await following
            finally:
                await publisher.withdraw()
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            if source.store.done():
                await source.store.result().close()

    async def _until_stopped(self, stop: Stop, background: list[asyncio.Task[None]]) -> None:
        """Returns when asked to stop; raises what ended a background task, since without it nothing here is right."""
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([stopping, *background], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
        for task in background:
            if task.done():
                await task

    async def _drain(self, core: Core, front: Front, health: Health, server: asyncio.Server) -> None:
        """Not ready at once; accepts a little longer; lets requests in flight finish; then cuts."""
        limits = self.config.drain
        health.stopping = True
        front.closing = True
        core.draining = True
        logger.info("stopping", extra={"fields": {"in_flight": len(core.active), "connections": len(front.open)}})
        end = self.clock.monotonic() + limits.seconds
        if front.open:
            await self.clock.sleep(min(limits.lame_duck_seconds, limits.seconds))
        server.close()
        while (core.active or any(each.busy for each in front.open)) and self.clock.monotonic() < end:
            front.close_idle()
            await self.clock.sleep(0.05)
        left = list(core.active)
        if left:
            logger.warning("cutting requests that did not finish", extra={"fields": {"requests": len(left)}})
        for active in left:
            active.cut()
        if front.open:
            front.close_idle()
            # For what was just written to leave the machine.
            await self.clock.sleep(0.1)

    @staticmethod
    def _orphaned(stop: Stop, life: int) -> None:
        asyncio.get_running_loop().remove_reader(life)
        stop.request("the supervisor is gone")

    def _reload(self, front: Front) -> None:
        """SIGHUP: reads the API keys again; a file with a fault changes nothing."""
        if self.config.api_keys is None:
            return
        try:
            front.keys = api_keys.load(self.config.api_keys)
        except ConfigError as error:
            logger.error("API keys not reloaded, the old ones stay in force: %s", error)  # noqa: TRY400 - the message says it all
            return
        logger.info("API keys reloaded", extra={"fields": {"keys": len(front.keys)}})


def announce(config: RouterConfig, url: str, endpoints: int) -> None:
    """The line that says where the router listens and whom it serves."""
    served = f"clients with a key from {config.api_keys}" if config.api_keys else "every client, since no API keys are set"
    source = f"{endpoints} endpoints" if config.etcd is None else f"the endpoints in etcd at {', '.join(config.etcd.endpoints)}"
    logger.info("llmgw-router listening on %s, serving %s; %s", url, served, source)


def worker_count(config: RouterConfig) -> int:
    return config.workers if config.workers != "auto" else len(os.sched_getaffinity(0))


def _tls(config: RouterConfig) -> ssl.SSLContext | None:
    if config.tls is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(config.tls.cert, config.tls.key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"tls: {config.tls.cert} and {config.tls.key} cannot be used: {error}") from error
    return context


def _connection_limit(config: RouterConfig) -> int:
    """How many clients there may be, so that there is always a file left for an engine's connection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    most = max(4, (hard - _OTHER_FILES) // 2)
    return min(most, config.limits.connections or most)
