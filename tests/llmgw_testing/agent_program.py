"""An agent as a process of its own, on a real etcd. Its engines are ended with the block.

::

    async with program(tmp_path, etcd) as agent:
        await agent.wish(fake_wish())
        await agent.start()
        record, endpoint = await agent.ready("m-1.0")
        await agent.end(signal.SIGKILL)
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

from llmgw_agent.process.end import send_signal
from llmgw_agent.process.identity import Owner
from llmgw_agent.process.scan import find_logmons, find_marked
from llmgw_base.clock import SystemClock
from llmgw_base.etcd.client import EtcdStore
from llmgw_proto import keyspace
from llmgw_proto.records import AssignmentRecord, ClusterRecord, EndpointRecord, ShardRecord
from llmgw_testing.agent_harness import SECRET, TESTS, WITHIN, remove_homes
from llmgw_testing.etcd_server import EtcdServer
from llmgw_testing.wait import eventually

#: Names of the steps of a start at which :meth:`Program.start` can have the agent killed.
STEPS = ("before-attempt-saved", "attempt-saved", "spawned", "process-saved")


class Program:
    """An agent's process and what it leaves in etcd."""

    def __init__(self, root: Path, etcd: EtcdServer, **engines: Any) -> None:
        self.node = f"n-{uuid.uuid4().hex[:8]}"
        self.store = EtcdStore(etcd.section(), SystemClock())
        self.root = root
        self.config = root / "agent.yaml"
        self.log = root / "agent.log"
        config = {
            "node": {"name": self.node, "reserved_memory": "0"},
            "state_dir": str(root / "state"),
            "listen": "127.0.0.1:0",
            "lease_ttl": 3,
            "etcd": {"endpoints": [etcd.endpoint]},
            "engines": {"stop_seconds": 3, **engines},
            "log": {"format": "text"},
        }
        self.config.write_text(yaml.safe_dump(config))
        self.process: asyncio.subprocess.Process | None = None

    async def start(self, failpoint: str | None = None) -> asyncio.subprocess.Process:
        program = ["llmgw_agent"] if failpoint is None else ["llmgw_testing.agent_failpoint", failpoint]
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *[sys.executable, "-m", *program, "--config", str(self.config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": str(TESTS)},
            )
        return self.process

    async def end(self, number: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        async with asyncio.timeout(WITHIN):
            return await self.process.wait()

    async def wish(self, wish: AssignmentRecord) -> None:
        await self.store.put(keyspace.assignment(self.node, wish.shard), wish.encode())

    async def record(self, shard: str) -> ShardRecord | None:
        found = await self.store.get(keyspace.shard(self.node, shard))
        return ShardRecord.decode(found.value) if found is not None else None

    async def ready(self, shard: str) -> tuple[ShardRecord, EndpointRecord]:
        async def check() -> tuple[ShardRecord, EndpointRecord] | None:
            record = await self.record(shard)
            if record is None or record.state != "Ready":
                return None
            there = await self.store.get(keyspace.endpoint(self.node, record.replica))
            return (record, EndpointRecord.decode(there.value)) if there is not None else None

        found = await eventually(check, within=2 * WITHIN, what=f"{shard} to be ready, see {self.log}")
        assert found is not None
        return found

    def engines(self) -> list[int]:
        return [each.identity.pid for each in find_marked(self.node) if each.leader]


@asynccontextmanager
async def program(root: Path, etcd: EtcdServer, **engines: Any) -> AsyncIterator[Program]:
    one = Program(root, etcd, **engines)
    cluster = ClusterRecord(id="cluster-1", name="test", created_at=time.time(), engine_secret=SECRET)
    try:
        await one.store.put(keyspace.CLUSTER, cluster.encode())
        yield one
        assert "Traceback" not in one.log.read_text()
    finally:
        if one.process is not None and one.process.returncode is None:
            await one.end(signal.SIGKILL)
        for each in find_marked(one.node):
            send_signal(each.identity, signal.SIGKILL)
        await eventually(lambda: not find_logmons(one.node), within=WITHIN, what="log writers to end")
        await eventually(lambda: remove_homes(Owner("cluster-1", one.node)), within=WITHIN, what="cgroups to be empty")
        await one.store.close()
