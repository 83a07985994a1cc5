"""Engines as services of a real systemd, and in cgroups of their own; in a container that boots this host's files."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
import yaml

from llmgw_agent.process.home import ENGINE, slice_name
from llmgw_agent.process.identity import Owner
from llmgw_base.clock import SystemClock
from llmgw_base.etcd.client import EtcdStore
from llmgw_base.secrets import engine_key
from llmgw_proto import keyspace
from llmgw_proto.records import AssignmentRecord, ClusterRecord, ShardRecord
from llmgw_testing.agent_harness import SECRET, TESTS, WITHIN, fake_wish
from llmgw_testing.etcd_server import EtcdServer
from llmgw_testing.nspawn import Machine
from llmgw_testing.wait import eventually

CLUSTER = "cluster-1"
SHARD = "m-1.0"
#: Leaves a grandchild in a session of its own, without parent and without marks, and then becomes the fake engine.
ESCAPE = """
import os, subprocess, sys
lost = "import subprocess as s; p = s.Popen(['sleep', '100000'], env={}, start_new_session=True); print(p.pid, flush=True)"
with open(sys.argv[1], "w") as file:
    subprocess.run([sys.executable, "-c", lost], stdout=file, check=True)
os.execv(sys.executable, [sys.executable, "-m", "llmgw_testing.fake_engine", *sys.argv[2:]])
"""


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdServer]:
    with EtcdServer("3.5") as server:
        yield server


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with Machine(tmp_path_factory.mktemp("shared")) as one:
        yield one


class Service:
    """The agent as a service in the container, as packages install it: systemd restarts it and ends all of its cgroup."""

    def __init__(self, machine: Machine, etcd: EtcdServer, node: str, isolation: str) -> None:
        self.machine, self.node = machine, node
        self.unit = f"agent-{node}.service"
        self.store = EtcdStore(etcd.section(), SystemClock())
        self.folder = machine.shared / node
        self.folder.mkdir()
        self.config, self.log = self.folder / "agent.yaml", self.folder / "agent.log"
        config = {
            "node": {"name": node, "reserved_memory": "0"},
            "state_dir": str(self.folder / "state"),
            "listen": "127.0.0.1:0",
            "metrics": {"listen": None},
            "etcd": {"endpoints": [etcd.endpoint]},
            "engines": {"isolation": isolation, "stop_seconds": 2},
            "restart": {"first_delay": 0.2, "longest_delay": 0.5},
            "log": {"format": "text"},
        }
        self.log.touch()
        self.config.write_text(yaml.safe_dump(config))

    def start(self) -> None:
        path = os.pathsep.join([str(TESTS), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]).strip(os.pathsep)
        options = [f"--unit={self.unit}", f"--setenv=PYTHONPATH={path}", "--property=Restart=always", "--property=RestartSec=0"]
        options += [f"--property=Standard{each}=append:{self.log}" for each in ("Output", "Error")]
        self.machine.run("systemd-run", "--quiet", *options, sys.executable, "-m", "llmgw_agent", "--config", str(self.config))

    def wish(self, shard: str = SHARD) -> AssignmentRecord:
        wish = fake_wish(shard.partition("-")[0])
        command = [sys.executable, "-c", ESCAPE, str(self.folder / "escaped"), *(wish.command or [])[3:]]
        return wish.model_copy(update={"command": command})

    async def record(self) -> ShardRecord | None:
        found = await self.store.get(keyspace.shard(self.node, SHARD))
        return ShardRecord.decode(found.value) if found is not None else None

    async def ready(self, *, after: float = 0.0) -> ShardRecord:
        async def check() -> ShardRecord | None:
            record = await self.record()
            return record if record is not None and record.state == "Ready" and record.updated_at > after else None

        found = await eventually(check, within=2 * WITHIN, what="the engine to be ready")
        assert found is not None
        return found

    async def said(self, words: str, times: int = 1) -> None:
        await eventually(lambda: self.log.read_text().count(words) >= times, within=WITHIN, what=f"the agent to say {words!r}")

    def escaped(self) -> int:
        pid = int((self.folder / "escaped").read_text())
        assert self.lives(pid)
        return pid

    def lives(self, pid: int | None) -> bool:
        return self.machine.call("test", "-d", f"/proc/{pid}").returncode == 0

    def environment(self, pid: int | None) -> dict[str, str]:
        lines = self.machine.run("cat", f"/proc/{pid}/environ").split("\0")
        return dict(line.split("=", 1) for line in lines if "=" in line)

    def cgroup(self, pid: int | None) -> str:
        lines = self.machine.run("cat", f"/proc/{pid}/cgroup").splitlines()
        return next(line.removeprefix("0::") for line in lines if line.startswith("0::"))

    def units(self) -> list[str]:
        listed = self.machine.run("systemctl", "list-units", "--all", "--plain", "--no-legend", "llmgw-*.service")
        return [line.split()[0] for line in listed.splitlines()]

    def cgroups(self) -> list[str]:
        found = self.machine.run("find", "/sys/fs/cgroup", "-name", f"{ENGINE}*", "-type", "d")
        return found.split()


@asynccontextmanager
async def service(machine: Machine, etcd: EtcdServer, node: str, isolation: str) -> AsyncIterator[Service]:
    one = Service(machine, etcd, node, isolation)
    cluster = ClusterRecord(id=CLUSTER, name="test", created_at=time.time(), engine_secret=SECRET)
    try:
        await one.store.put(keyspace.CLUSTER, cluster.encode())
        one.start()
        await one.store.put(keyspace.assignment(node, SHARD), one.wish().encode())
        yield one
        assert "Traceback" not in one.log.read_text()
    except BaseException:
        sys.stderr.write(one.log.read_text())
        raise
    finally:
        machine.call("systemctl", "stop", one.unit)
        await one.store.close()


def test_an_engine_is_a_service_of_its_own_and_outlives_the_agents_service(machine: Machine, etcd: EtcdServer) -> None:
    async def body() -> None:
        async with service(machine, etcd, "n1", "auto") as agent:
            first = await agent.ready()
            await agent.said("engines are kept apart by systemd")
            (engine,) = [unit for unit in agent.units() if unit.startswith(ENGINE)]
            (writer,) = [unit for unit in agent.units() if unit.startswith("llmgw-log-")]
            assert engine.startswith(f"{ENGINE}{SHARD}-")
            owner = Owner(CLUSTER, "n1")
            assert agent.cgroup(first.pid) == f"/llmgw.slice/{slice_name(owner)}.slice/{engine}"
            lost = agent.escaped()
            assert agent.cgroup(lost) == agent.cgroup(first.pid)
            environment = agent.environment(first.pid)
            assert environment["LLMGW_SHARD"] == SHARD
            assert "LLMGW_SHARD" not in agent.environment(lost)
            assert "INVOCATION_ID" not in environment, "what systemd tells its services is not for engines"
            assert engine_key(SECRET, "m-1", 1) not in machine.run("systemctl", "show", engine)
            assert machine.run("cat", f"/proc/{first.pid}/oom_score_adj").strip() == "300"

            machine.run("systemctl", "restart", agent.unit)
            await agent.said("engine adopted")
            again = await agent.ready(after=first.updated_at)
            machine.run("systemctl", "kill", "--signal=KILL", agent.unit)
            await agent.said("engine adopted", 2)
            again = await agent.ready(after=again.updated_at)
            assert again.pid == first.pid
            assert again.restarts == 0
            assert writer in agent.units(), "nobody else writes the log"

            machine.run("kill", "-ABRT", str(first.pid))
            await agent.said("killed by SIGABRT")
            second = await agent.ready(after=again.updated_at)
            assert second.pid != first.pid
            assert not agent.lives(lost), "whoever escaped ends with the engine"

            lost = agent.escaped()
            machine.run("systemctl", "stop", agent.unit)
            machine.run("kill", "-SEGV", str(second.pid))
            await eventually(lambda: not agent.lives(second.pid), within=WITHIN, what="the engine to be gone")
            agent.start()
            await agent.said("killed by SIGSEGV")
            await agent.ready(after=second.updated_at)
            assert not agent.lives(lost)

            lost = agent.escaped()
            await agent.store.delete(keyspace.assignment("n1", SHARD))

            async def gone() -> bool:
                return await agent.record() is None

            await eventually(gone, within=WITHIN, what="the shard to be gone")
            assert not agent.lives(lost)
            await eventually(lambda: not agent.units(), within=WITHIN, what="the log's writer to be gone")
            assert not agent.cgroups()
            assert machine.run("find", "/run/llmgw", "-type", "f") == ""

    asyncio.run(body())


def test_an_engine_in_a_cgroup_ends_with_all_that_it_started(machine: Machine, etcd: EtcdServer) -> None:
    async def body() -> None:
        async with service(machine, etcd, "n2", "cgroup") as agent:
            first = await agent.ready()
            await agent.said("engines are kept apart by cgroup")
            lost = agent.escaped()
            place = agent.cgroup(first.pid)
            assert place.startswith(f"/llmgw/{slice_name(Owner(CLUSTER, 'n2'))}/{ENGINE}{SHARD}-")
            assert agent.cgroup(lost) == place
            machine.run("kill", "-KILL", str(first.pid))
            second = await agent.ready(after=first.updated_at)
            assert second.pid != first.pid
            assert not agent.lives(lost)

            # The engine's end and the agent's, at once: its state file alone tells where to look.
            lost = agent.escaped()
            machine.run("systemctl", "kill", "--signal=KILL", agent.unit)
            machine.run("kill", "-KILL", str(second.pid))
            await agent.ready(after=second.updated_at)
            assert not agent.lives(lost)

            # Nobody knows of it any more: no state file, no wish, no mark.
            lost, third = agent.escaped(), await agent.ready()
            machine.run("systemctl", "stop", agent.unit)
            machine.run("kill", "-KILL", str(third.pid))
            await agent.store.delete(keyspace.assignment("n2", SHARD))
            for file in (agent.folder / "state/shards").iterdir():
                file.unlink()
            assert agent.lives(lost)
            agent.start()
            await eventually(lambda: not agent.lives(lost), within=WITHIN, what="what nobody wishes to end")
            await eventually(lambda: not agent.cgroups(), within=WITHIN, what="its cgroup to be gone")

    asyncio.run(body())


CHOOSE = """
import asyncio, sys
from llmgw_agent.process.choose import choose
from llmgw_base.clock import SystemClock
from llmgw_base.config import ConfigError
try:
    found, objections = asyncio.run(choose(sys.argv[1], 3, SystemClock()))
    print(found.kind, objections, sep=": ")
except ConfigError as error:
    print(error)
"""


def chosen(machine: Machine, wanted: str, *within: str) -> str:
    path = f"PYTHONPATH={os.environ.get('PYTHONPATH', '')}"
    return machine.run(*within, "env", path, sys.executable, "-c", CHOOSE, wanted)


def test_the_best_way_is_found_by_trying_and_what_speaks_against_a_better_one_is_said(machine: Machine) -> None:
    assert chosen(machine, "auto") == "systemd: \n"
    elsewhere = ("unshare", "--net")
    assert chosen(machine, "auto", *elsewhere).startswith("cgroup: systemd: the agent has another net, pid or user namespace")
    assert chosen(machine, "group") == "group: \n"
    said = chosen(machine, "systemd", *elsewhere)
    assert said.startswith("engines.isolation: systemd cannot be had on this node: systemd: the agent has another net")
    read_only = (*elsewhere, "--mount", "sh", "-c", 'mount -o remount,bind,ro /sys/fs/cgroup && exec "$@"', "sh")
    said = chosen(machine, "auto", *read_only)
    assert said.startswith("group: systemd: the agent has another net")
    assert "; cgroup: /sys/fs/cgroup/llmgw: Read-only file system" in said
    left = machine.run("find", "/sys/fs/cgroup", "/run/llmgw", "-name", "*try-*")
    assert left == "", "trying leaves nothing behind"
