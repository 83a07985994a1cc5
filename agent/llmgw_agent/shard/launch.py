"""From a wish to a running process, step by step, so that the agent may die between any two of them."""

from __future__ import annotations

import asyncio
import secrets
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace

from llmgw_agent.engines.base import Available, Checked, Driver, Gang, Launch, Located, Place
from llmgw_agent.engines.fabric import fabric_environment, nearest_cards
from llmgw_agent.engines.hf_engine import HfEngine
from llmgw_agent.engines.kv_event_flags import KvSockets, prepare_folder, wants_kv_events, with_kv_events
from llmgw_agent.engines.llamacpp import LlamaCpp
from llmgw_agent.engines.registry import find_driver
from llmgw_agent.errors import AttemptError, RejectedError
from llmgw_agent.install.progress import Progress
from llmgw_agent.install.recipes import RECIPES
from llmgw_agent.logs.files import headline_of
from llmgw_agent.process.identity import Marker
from llmgw_agent.process.output import Output
from llmgw_agent.shard.context import Context
from llmgw_agent.shard.engine import Engine
from llmgw_agent.shard.hide import hidden
from llmgw_agent.shard.state import SavedAttempt, SavedProcess, fingerprint
from llmgw_proto.engines import check_args, check_env
from llmgw_proto.records import AssignmentRecord, ShardRole
from llmgw_proto.records.model import parse_bytes

#: Memory that another engine is just giving back is worth a short wait.
MEMORY_WAIT_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Prepared:
    driver: Driver
    located: Located
    checked: Checked


async def locate(context: Context, wish: AssignmentRecord, progress: Progress = lambda _: None) -> tuple[Driver, Located]:
    """Installs the engine if it is one that the agent installs; ``progress`` hears how far that is.

    Raises:
        RejectedError: the engine is unknown, or not here and cannot be installed.
        AttemptError: it cannot be installed now.
    """
    driver = find_driver(context.drivers, wish.engine)
    if wish.engine in RECIPES and (problem := check_args(wish.engine, wish.args) or check_env(wish.env)) is not None:
        # Nobody shall wait minutes for an engine that is then not started.
        raise RejectedError(problem)
    located = await _find(context, wish, driver, progress)
    if located is None:
        raise RejectedError(f"engine {wish.engine} is not installed on node {context.node}; {_how_to_install(wish)}")
    if isinstance(driver, HfEngine):
        await context.rehearsals.rehearse(driver, wish, located)
    return driver, located


async def _find(context: Context, wish: AssignmentRecord, driver: Driver, progress: Progress) -> Located | None:
    """What the host has if that is wished, else what the agent installs."""
    if wish.engine not in RECIPES:
        return await asyncio.to_thread(driver.locate)
    await context.installer.settings.ready(wish.engine)
    if isinstance(driver, LlamaCpp):
        host = await asyncio.to_thread(driver.locate)
        usual = driver.explicit or context.installer.settings.default(wish.engine) is None
        if host is not None and (usual if wish.version is None else wish.version == host.version):
            return host
    environment = await context.installer.provide(wish.engine, wish.version, progress)
    return environment.located if environment is not None else None


def _how_to_install(wish: AssignmentRecord) -> str:
    version = f" ({wish.version} is wanted)" if wish.version else ""
    return (
        f"set engines.install.{wish.engine}.version in its agent's configuration, or a version for the whole fleet with "
        f"`llmgwctl engine set {wish.engine}`, and the agent installs it{version}"
    )


async def check(context: Context, wish: AssignmentRecord, driver: Driver, weights: Available | None) -> Checked:
    """Raises RejectedError if the wish can never be fulfilled here, or memory stays short."""
    host = context.memory()
    checked = await asyncio.to_thread(driver.check, wish, host, weights)
    need = checked.memory_bytes
    if wish.gpus or need <= host.memory_free:
        return checked
    if need > host.memory_limit:
        raise RejectedError(
            f"memory: about {_mib(need)} are needed, this node has {_mib(host.memory_limit)} for engines; {_REMEDY}"
        )
    deadline = context.clock.monotonic() + MEMORY_WAIT_SECONDS
    while need > (free := context.memory().memory_free):
        if context.clock.monotonic() >= deadline:
            raise RejectedError(f"memory: about {_mib(need)} are needed and {_mib(free)} are free on this node; {_REMEDY}")
        await context.clock.sleep(0.5)
    return checked


_REMEDY = "use a smaller model or quantisation, give the profile less memory, or use another node"


def _mib(size: int) -> str:
    return f"{size / parse_bytes('1MiB'):.0f} MiB"


@dataclass(slots=True)
class Launcher:
    """Starts one attempt. ``save`` writes the shard's state file with what is given."""

    context: Context
    wish: AssignmentRecord
    api_key: str
    save: Callable[[SavedAttempt, SavedProcess | None], None]
    gang: Gang | None = None
    begin: Callable[[Gang], None] = lambda _: None
    """Told of the gang before its process starts."""

    async def start(self, prepared: Prepared) -> Engine:
        """Takes a port, spawns, and has everything on disk that a later agent needs to know the process again.

        Must not be cancelled: a worker must not leave a process that it does not know.

        Raises:
            RejectedError: the program cannot be started at all.
            AttemptError: not now.
        """
        context, wish = self.context, self.wish
        host = context.config.engine_host
        port = context.ports.take()
        try:
            attempt = SavedAttempt(
                id=secrets.token_hex(8),
                wish=fingerprint(wish),
                host=host,
                port=port,
                engine_version=prepared.located.version,
                memory_bytes=prepared.checked.memory_bytes,
            )
            gang = self._gang(prepared.driver, port)
            place = self._place(host, port, gang)
            launch = prepared.driver.launch(wish, prepared.located, prepared.checked, place)
            launch = _with_events(context, wish, launch, attempt.id)
            attempt = attempt.model_copy(
                update={
                    "argv": hidden(launch.argv, self.api_key),
                    "environment": tuple(sorted(launch.environment)),
                    "kv_events": wants_kv_events(context.config.engines.kv_events, wish),
                }
            )
            context.checkpoint("before-attempt-saved")
            if gang is not None:
                self.begin(gang)
            self.save(attempt, None)
            context.checkpoint("attempt-saved")
            engine = await self._spawn(launch, attempt)
        except BaseException:
            context.ports.give_back(port)
            raise
        context.checkpoint("spawned")
        self.save(attempt, SavedProcess.of(engine.identity, context.clock.wall(), engine.home))
        context.checkpoint("process-saved")
        return engine

    def _gang(self, driver: Driver, port: int) -> Gang | None:
        gang = self.gang
        if gang is None or not is_worker(self.wish) or not driver.worker_listens(self.wish):
            return gang
        members = list(gang.members)
        members[gang.rank] = replace(gang.own, port=port)
        return replace(gang, members=tuple(members))

    def _place(self, host: str, port: int, gang: Gang | None) -> Place:
        if gang is None:
            return Place(host, port, self.api_key)
        topology = self.context.topology()
        fabric, cards = fabric_environment(topology, gang.own.address), nearest_cards(topology, self.wish.gpus)
        return Place(host, port, self.api_key, gang, fabric, cards)

    async def _spawn(self, launch: Launch, attempt: SavedAttempt) -> Engine:
        marker = marker_of(self.context, self.wish, attempt)
        output = output_of(self.context, self.wish.shard, attempt.id)
        headline = f"{headline_of(attempt.id)} epoch {self.wish.epoch}, port {attempt.port}: {shlex.join(attempt.argv)}"
        isolation, boot = self.context.isolation, self.context.boot
        return await Engine.start(isolation, launch.argv, launch.environment, marker, output, boot, headline)


def is_worker(wish: AssignmentRecord) -> bool:
    """Whether it is a part that serves no requests itself."""
    return wish.role is ShardRole.WORKER


def _with_events(context: Context, wish: AssignmentRecord, launch: Launch, attempt: str) -> Launch:
    if not wants_kv_events(context.config.engines.kv_events, wish):
        return launch
    try:
        prepare_folder(context.kv_folder, wish.shard)
    except OSError as error:
        raise AttemptError(f"folder {context.kv_folder}: {error.strerror}; free the disk or correct its permissions") from error
    return with_kv_events(launch, kv_sockets(context, wish, attempt))


def kv_sockets(context: Context, wish: AssignmentRecord, attempt: str) -> KvSockets:
    """Where the engine of that attempt publishes its KV-cache events, if it does."""
    return KvSockets.of(context.kv_folder, attempt, wish)


def marker_of(context: Context, wish: AssignmentRecord, attempt: SavedAttempt) -> Marker:
    return Marker(
        owner=context.owner, shard=wish.shard, epoch=wish.epoch, attempt=attempt.id, port=attempt.port, wish=attempt.wish
    )


def output_of(context: Context, shard: str, attempt: str) -> Output:
    logs = context.config.logs
    return Output(
        context.log_folder(shard),
        context.owner,
        attempt,
        context.boot,
        max_bytes=parse_bytes(logs.max_bytes),
        files=logs.files,
        isolation=context.isolation,
    )
