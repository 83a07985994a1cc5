"""One agent inside the test's process: real engines (fake or not), a store in memory, real time.

::

    async with AgentHarness(tmp_path) as agent:
        await agent.wish(fake_wish("m", epoch=1))
        shard = await agent.shard("m-1.0", "Ready")
        ...
        await agent.crash()      # as SIGKILL would: engines live on, nothing is said, nothing is revoked
        await agent.start()      # a new life on the same state folder and store

Leaving the block ends every process that carries this harness's node name, and fails the test if the agent itself failed.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from llmgw_agent.app import App
from llmgw_agent.config import AgentConfig
from llmgw_agent.hardware.watch import HardwareWatch
from llmgw_agent.process.cgroup import Cgroup, hierarchies
from llmgw_agent.process.choose import FOLDER
from llmgw_agent.process.end import send_signal
from llmgw_agent.process.home import slice_name
from llmgw_agent.process.identity import Owner
from llmgw_agent.process.scan import Marked, find_marked
from llmgw_base.clock import Clock
from llmgw_base.etcd.api import Store
from llmgw_base.lifecycle import Stop
from llmgw_base.notify import Notifier
from llmgw_proto import keyspace
from llmgw_proto.records import AssignmentRecord, ClusterRecord, EndpointRecord, ShardRecord
from llmgw_testing.memserver import MemoryServer
from llmgw_testing.memstore import MemoryStore
from llmgw_testing.quiet_watch import QuietWatch
from llmgw_testing.wait import eventually

TESTS = Path(__file__).parents[1]
SECRET = "5e" * 32
#: Generous: the machine may be busy with other tests.
WITHIN = 30.0


def fake_wish(name: str = "m", *extra: str, script: str = "normal", **fields: Any) -> AssignmentRecord:
    """An assignment that the fake engine fulfils; its shard is ``<name>-1.0``."""
    flags = ["--port", "{port}", "--model", "{name}", "--api-key", "{api_key}", "--script", script, *extra]
    data: dict[str, Any] = {
        "shard": f"{name}-1.0",
        "replica": f"{name}-1",
        "model": name,
        "epoch": 1,
        "engine": "command",
        "command": [sys.executable, "-m", "llmgw_testing.fake_engine", *flags],
        "env": {"PYTHONPATH": str(TESTS)},
        "drain_seconds": 2.0,
    }
    return AssignmentRecord(**(data | fields))


def remove_homes(owner: Owner) -> bool:
    """Removes cgroups of engines that ended without their agent; whether none is left."""
    folders = [each.mount / FOLDER / slice_name(owner) for each in hierarchies()]
    return all(Cgroup(folder).remove() for folder in folders)


class AgentHarness:
    def __init__(self, root: Path, *, server: MemoryServer | None = None, cluster: str = "cluster-1", **settings: Any) -> None:
        self.cluster = cluster
        self.node = f"n-{uuid.uuid4().hex[:8]}"
        self.store = MemoryStore(server=server)
        data: dict[str, Any] = {
            "node": {"name": self.node, "reserved_memory": "0"},
            "state_dir": str(root / "agent"),
            "listen": "127.0.0.1:0",
            "lease_ttl": 2,
            "metrics": {"listen": None},
            "engines": {"stop_seconds": 3, "hang_seconds": 10, "on_stop": "keep"},
            "restart": {"first_delay": 0.2, "longest_delay": 0.5},
        }
        for section, value in settings.items():
            data[section] = {**data.get(section, {}), **value} if isinstance(value, dict) else value
        self.node = data["node"]["name"]
        self.config = AgentConfig.model_validate(data)
        self.checkpoint: Callable[[str], None] = lambda _: None
        self.watch: Callable[..., HardwareWatch] = QuietWatch
        self._task: asyncio.Task[None] | None = None
        self._stop = Stop()
        self._lives: list[MemoryStore] = []

    # --- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        assert self._task is None, "already running"
        self._stop = Stop()
        # Its own client on the same server, as a new process has; the old one's leases run out.
        life = MemoryStore(server=self.store.server)
        self._lives.append(life)

        async def connect(config: AgentConfig, clock: Clock) -> Store:
            return life

        app = App(self.config, connect=connect, watch=self.watch, checkpoint=lambda step: self.checkpoint(step))
        self._task = asyncio.create_task(app.run(self._stop, Notifier({})), name="agent")

    @property
    def life(self) -> MemoryStore:
        """The running agent's own client."""
        return self._lives[-1]

    async def stop(self) -> None:
        """As SIGTERM does."""
        task, self._task = self._task, None
        assert task is not None, "not running"
        self._stop.request("SIGTERM")
        await task

    async def failure(self) -> None:
        """Waits for the end of an agent that fails on its own, and raises what it failed with."""
        task, self._task = self._task, None
        assert task is not None, "not running"
        async with asyncio.timeout(WITHIN):
            await task

    async def crash(self) -> None:
        """Ends the agent without a word, as far as that can be done inside one process."""
        self.life.down("crashed")
        await self.stop()

    async def __aenter__(self) -> Self:
        record = ClusterRecord(id=self.cluster, name="test", created_at=time.time(), engine_secret=SECRET)
        await self.store.put(keyspace.CLUSTER, record.encode())
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._task is not None:
                await self.stop()
        finally:
            for each in self.processes():
                send_signal(each.identity, signal.SIGKILL)
            await eventually(self._no_writers, within=WITHIN, what="log writers to end")
            await eventually(partial(remove_homes, Owner(self.cluster, self.node)), within=WITHIN, what="cgroups to be empty")
            await self.store.close()

    def _no_writers(self) -> bool:
        # A log writer removes its pipe when it ends.
        return not list(self.config.state_dir.glob("logs/*/*.pipe"))

    # --- what the leader does -----------------------------------------------------------------------------------------

    async def wish(self, assignment: AssignmentRecord) -> AssignmentRecord:
        await self.store.put(keyspace.assignment(self.node, assignment.shard), assignment.encode())
        return assignment

    async def unwish(self, shard: str) -> None:
        await self.store.delete(keyspace.assignment(self.node, shard))

    # --- what others see ----------------------------------------------------------------------------------------------

    async def record(self, shard: str) -> ShardRecord | None:
        found = await self.store.get(keyspace.shard(self.node, shard))
        return None if found is None else ShardRecord.decode(found.value)

    async def endpoint(self, replica: str) -> EndpointRecord | None:
        found = await self.store.get(keyspace.endpoint(self.node, replica))
        return None if found is None else EndpointRecord.decode(found.value)

    async def shard(self, shard: str, state: str, *, within: float = WITHIN, **fields: Any) -> ShardRecord:
        """Waits until the shard's record says so; for Ready and Draining also for the endpoint."""

        async def check() -> ShardRecord | None:
            record = await self.record(shard)
            if record is None or record.state != state:
                return None
            if any(getattr(record, name) != value for name, value in fields.items()):
                return None
            return record if state != "Ready" or await self.endpoint(record.replica) is not None else None

        found = await eventually(check, within=within, what=f"shard {shard} to be {state} {fields or ''}")
        assert found is not None
        return found

    async def nothing_left(self, shard: str, replica: str) -> None:
        """Waits until no key and no process of the shard is left."""

        async def check() -> bool:
            keys = await self.record(shard), await self.endpoint(replica)
            return keys == (None, None) and not [each for each in self.processes() if each.marker.shard == shard]

        await eventually(check, within=WITHIN, what=f"nothing of shard {shard} to be left")

    def processes(self) -> list[Marked]:
        """Of this agent's engines; an engine that was taken into another cluster keeps the mark of its first one."""
        return find_marked(self.node, self.cluster)

    def engines(self, shard: str) -> list[int]:
        """Pids of the first processes of the shard's engines: there must never be two."""
        return [each.identity.pid for each in self.processes() if each.leader and each.marker.shard == shard]
