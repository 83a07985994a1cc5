"""The composition root: the only place where the agent's parts are wired together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from llmgw_agent import __version__
from llmgw_agent.config import AgentConfig
from llmgw_agent.engines.base import Host
from llmgw_agent.engines.registry import make_drivers
from llmgw_agent.fabric_maps import FabricMaps
from llmgw_agent.hardware.metrics import HardwareMetrics
from llmgw_agent.hardware.watch import HardwareWatch
from llmgw_agent.host.inventory import Devices, memory_for_engines
from llmgw_agent.host.memory import read_memory
from llmgw_agent.install.archives import Archives
from llmgw_agent.install.choose import Kind
from llmgw_agent.install.environments import Environments
from llmgw_agent.install.fleet import Fleet
from llmgw_agent.install.installer import Installer
from llmgw_agent.install.node_settings import NodeSettings
from llmgw_agent.live import LiveHardware, live_hardware, shards_here
from llmgw_agent.lock import NameLock, StateLock
from llmgw_agent.membership import find_cluster, objection_now, wait_for_name
from llmgw_agent.metrics import AgentMetrics
from llmgw_agent.metrics_server import serve_metrics
from llmgw_agent.node import NodePublisher
from llmgw_agent.process.choose import choose
from llmgw_agent.process.identity import boot_id
from llmgw_agent.process.isolation import Isolation
from llmgw_agent.process.ports import Ports, ephemeral_range, overlaps
from llmgw_agent.publisher import Publisher
from llmgw_agent.rpc.bandwidth import Bandwidth
from llmgw_agent.rpc.desk import Desk
from llmgw_agent.rpc.engines import engines_service
from llmgw_agent.rpc.server import start_server
from llmgw_agent.rpc.service import AgentService
from llmgw_agent.rpc.shards import ShardsService
from llmgw_agent.rpc.telemetry import Telemetry
from llmgw_agent.rpc.weights import weights_service
from llmgw_agent.shard.connections import Connections
from llmgw_agent.shard.context import Context, log_folder
from llmgw_agent.shard.gpu_users import ask_driver
from llmgw_agent.shard.gpus import Gpus
from llmgw_agent.shard.recover import look
from llmgw_agent.shard.state import StateDir
from llmgw_agent.shard.supervisor import Supervisor
from llmgw_agent.shared_weights import SharedWeights
from llmgw_agent.stored_weights import forget_others, keep_tidy, open_weights
from llmgw_agent.weights import WeightStore
from llmgw_agent.weights.metrics import WeightsMetrics
from llmgw_agent.wishes import follow
from llmgw_base.clock import Clock, SystemClock
from llmgw_base.etcd.api import Store
from llmgw_base.lifecycle import Stop
from llmgw_base.metrics import new_registry
from llmgw_base.net import Listen, is_loopback, parse_listen
from llmgw_base.notify import Notifier
from llmgw_base.secrets import agent_token
from llmgw_proto import keyspace
from llmgw_proto.records.model import parse_bytes

#: With ``engines.on_stop: stop``, how long running requests may take before their engine is ended.
STOP_DRAIN_SECONDS = 3.0
logger = logging.getLogger(__name__)

Connect = Callable[[AgentConfig, Clock], Awaitable[Store]]
MakeWatch = Callable[..., HardwareWatch]


class App:
    """One agent. Tests replace ``connect``, ``watch`` and ``checkpoint``."""

    def __init__(
        self,
        config: AgentConfig,
        *,
        connect: Connect,
        watch: MakeWatch = HardwareWatch,
        clock: Clock | None = None,
        checkpoint: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._config = config
        self._clock = clock or SystemClock()
        self._connect, self._watch, self._checkpoint = connect, watch, checkpoint
        self._registry = new_registry("llmgw-agent", __version__)
        self._token: str | None = None
        self._secret: str | None = None
        self._supervisor: Supervisor | None = None
        self._hardware: LiveHardware | None = None
        self._shared: SharedWeights

    async def run(self, stop: Stop, notifier: Notifier) -> None:
        """Until ``stop``.

        Raises:
            ConfigError: a port or folder cannot be used.
            StoreError: etcd is of a version that is not to be trusted.
        """
        config = self._config
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(StateLock(config.state_dir).release)
            choosing = asyncio.create_task(self._isolation(), name="isolation")
            stack.push_async_callback(_abandon, choosing)
            store = await self._connect(config, self._clock)
            stack.push_async_callback(store.close)
            session = await stack.enter_async_context(_session())
            shared = self._shared = SharedWeights.of(config, store, session, self._clock)
            weights = await stack.enter_async_context(open_weights(config, self._clock, shared.fleet))
            await stack.enter_async_context(shared.serve(weights))
            context = self._context(store, session, weights)
            context.isolation = await choosing
            stack.push_async_callback(context.installer.close)
            AgentMetrics(self._registry, context.publisher, lambda: shards_here(context))
            WeightsMetrics(self._registry, weights.traffic)
            hardware = live_hardware(self._watch, context, HardwareMetrics(self._registry, self._clock))
            self._hardware = hardware
            bandwidth = Bandwidth(context, store, hardware, lambda: self._secret)
            context.measure = bandwidth.measure
            context.topology = lambda: hardware.devices.topology
            context.memory = lambda: _memory(config, hardware.devices)
            service = AgentService(
                lambda: self._token,
                lambda shard: log_folder(config.state_dir, shard),
                self._clock,
                Desk(context.node, hardware, self._clock),
                bandwidth,
            )
            telemetry = Telemetry(context, hardware, lambda: self._supervisor)
            shards = ShardsService(lambda: self._token, context, lambda: self._supervisor, telemetry)
            services = (weights_service(context, lambda: self._token), engines_service(context, lambda: self._token))
            server, listen = await start_server(config, service, shards.add_to, *services)
            stack.push_async_callback(server.stop, 1.0)
            logger.info("agent %s starts", __version__, extra={"fields": {"node": context.node, "grpc": str(listen)}})
            await self._serve(context, store, hardware, self._advertised(listen), stop, notifier)

    async def _isolation(self) -> Isolation:
        engines = self._config.engines
        found, objections = await choose(engines.isolation, engines.stop_seconds, self._clock)
        why = {"not": objections} if objections else {}
        logger.info("engines are kept apart by %s", found.kind, extra={"fields": {"isolation": found.kind, **why}})
        return found

    async def _serve(
        self, context: Context, store: Store, hardware: LiveHardware, grpc_address: str, stop: Stop, notifier: Notifier
    ) -> None:
        found = await asyncio.to_thread(look, context.state, context.owner)
        supervisor = self._supervisor = Supervisor(context, found)
        tasks = asyncio.create_task(self._work(context, store, supervisor, hardware, grpc_address, notifier), name="work")
        metrics = asyncio.create_task(self._metrics(), name="metrics")
        stopped = asyncio.create_task(stop.wait(), name="stop")
        notifier.ready()
        try:
            await asyncio.wait({tasks, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not tasks.done():
                logger.info(
                    "agent stops", extra={"fields": {"signal": stopped.result(), "engines": self._config.engines.on_stop}}
                )
        finally:
            stopped.cancel()
            metrics.cancel()
            await self._end(context, supervisor, tasks)
            await asyncio.gather(metrics, return_exceptions=True)

    async def _metrics(self) -> None:
        listen = self._config.metrics.listen
        if listen is None:
            return
        try:
            await serve_metrics(parse_listen(listen, key="metrics.listen"), self._config.tls, self._registry, self._clock)
        except Exception:
            logger.exception("fault in the metrics server; there are no metrics until the agent is started again")

    async def _work(
        self,
        context: Context,
        store: Store,
        supervisor: Supervisor,
        hardware: LiveHardware,
        grpc_address: str,
        notifier: Notifier,
    ) -> None:
        """Everything that goes on for ever, once the store is the right one."""
        cluster = await find_cluster(context, store, notifier.status)
        self._secret = cluster.engine_secret
        self._token = agent_token(cluster.engine_secret, context.node)
        supervisor.set_secret(cluster.engine_secret)
        if context.cluster_id != cluster.id:
            # New in this cluster, or the state folder was lost: engines of before are then known by their marks only.
            context.cluster_id = cluster.id
            supervisor.rediscover(await asyncio.to_thread(look, context.state, context.owner))
        with NameLock(cluster.id, context.node):
            await wait_for_name(context, store, notifier.status)
            # What runs is taken over before anything is said, so that nothing that lives looks gone for a moment.
            await supervisor.recovered()
            await forget_others(context.weights, supervisor.known)
            self._shared.join(context.publisher, cluster.engine_secret)
            node = NodePublisher(context, grpc_address, hardware)
            notifier.status(f"node {context.node} in cluster {cluster.name}")
            async with asyncio.TaskGroup() as group:
                group.create_task(context.publisher.run(), name="publisher")
                group.create_task(follow(store, context.node, supervisor), name="wishes")
                group.create_task(node.keep_status(), name="status")
                group.create_task(hardware.run(), name="hardware")
                group.create_task(node.introduce(), name="inventory")
                group.create_task(FabricMaps(context, store, hardware).run(), name="fabrics")
                group.create_task(context.installer.settings.follow(), name="engine settings")
                group.create_task(context.installer.clean(), name="old engines")
                group.create_task(keep_tidy(context.weights, self._clock), name="old weights")
                group.create_task(self._shared.run(context.weights), name="shared weights")

    async def _end(self, context: Context, supervisor: Supervisor, tasks: asyncio.Task[None]) -> None:
        """Ends engines if so configured, while the publisher still tells of it; then everything else."""
        keep = self._config.engines.on_stop == "keep"
        try:
            await supervisor.close(stop_engines=not keep, drain=STOP_DRAIN_SECONDS)
        finally:
            tasks.cancel()
            await asyncio.gather(tasks, return_exceptions=True)
            await context.publisher.close(keep=keep)
        if not tasks.cancelled() and (error := tasks.exception()) is not None:
            raise error

    def _context(self, store: Store, session: aiohttp.ClientSession, weights: WeightStore) -> Context:
        config, clock = self._config, self._clock
        node, ports = config.node.name, config.engines.ports
        low, high = ephemeral_range()
        if overlaps((ports.first, ports.last), (low, high)):
            logger.warning(
                "engines.ports overlaps the range of outgoing connections, so ports may be taken at any moment",
                extra={"fields": {"ports": f"{ports.first}-{ports.last}", "kernel": f"{low}-{high}"}},
            )
        prefixes = [keyspace.endpoints_of(node), keyspace.shards_of(node), f"{keyspace.NODES}{keyspace.part(node)}/"]
        prefixes.append(keyspace.fabric_ports_of(node))
        elsewhere = [url for url in config.etcd.endpoints if not is_loopback(urlsplit(url).hostname or "localhost")]
        if elsewhere and is_loopback(config.node.address):
            logger.warning(
                "node.address is %s, so routers on other hosts cannot reach the engines of this node", config.node.address
            )
        state = StateDir(config.state_dir)
        objection = partial(objection_now, state, store)
        environments = Environments(config.state_dir / "engines")
        install = {str(name): each for name, each in config.engines.install.items()}
        engines_changed = asyncio.Event()
        fleet = Fleet(store, environments.root, engines_changed.set, clock)
        settings = NodeSettings(install, fleet, self._kind, self._looked)
        problems: dict[str, str] = {}
        return Context(
            config=config,
            clock=clock,
            store=store,
            boot=boot_id(),
            objection=objection,
            publisher=Publisher(store, clock, prefixes, config.lease_ttl, objection),
            state=state,
            drivers=make_drivers(config.engines.llama_server, environments, settings.default, config.engines.llama_rpc_server),
            installer=Installer(
                environments, settings, clock, partial(_note, problems), Archives(weights), engines_changed.set
            ),
            engines_changed=engines_changed,
            problems=problems,
            connections=Connections(clock),
            gpus=Gpus(clock, ask_driver),
            ports=Ports(ports.first, ports.last, config.engine_host, clock),
            session=session,
            weights=weights,
            memory=lambda: _memory(config),
            checkpoint=self._checkpoint,
            cluster_id=state.cluster_id() or "",
        )

    def _kind(self) -> Kind:
        """What settings of engines tell this node by."""
        gpus = self._hardware.devices.gpus if self._hardware is not None else []
        return Kind(self._config.node.labels, frozenset(each.gpu_class or each.name for each in gpus))

    async def _looked(self) -> None:
        if self._hardware is not None:
            await self._hardware.first()

    def _advertised(self, listen: Listen) -> str:
        """Where coordinators reach the service: on loopback as it is, else under the node's address."""
        wildcard = listen.host in ("0.0.0.0", "::")  # noqa: S104 - read, not bound
        return str(Listen(self._config.node.address, listen.port)) if wildcard else str(listen)


@contextlib.asynccontextmanager
async def _session() -> AsyncIterator[aiohttp.ClientSession]:
    # A new connection for each question: a probe must not be answered by what a dead engine left in a buffer.
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True)) as session:
        yield session


async def _abandon(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _note(problems: dict[str, str], subject: str, text: str | None) -> None:
    """Keeps what is wrong with the subject; with None it is well again."""
    if text is None:
        problems.pop(subject, None)
    else:
        problems[subject] = text


def _memory(config: AgentConfig, devices: Devices | None = None) -> Host:
    reserved = parse_bytes(config.node.reserved_memory)
    gpus = {each.uuid: each.memory_bytes for each in devices.gpus} if devices is not None else {}
    return Host(memory_for_engines(config), max(0, read_memory().available - reserved), gpus)
