"""What supervision costs and how quick it is, with a real etcd and fake engines.

    python bench/agent.py [--isolation auto|systemd|cgroup|group] [--seconds N]

Prints how long an agent that was killed takes until it has adopted 8 replicas and said so in etcd, how soon the endpoint of a
killed engine is gone from etcd, and what share of one core the agent takes for 16 replicas that are Ready. ``systemd`` boots
this host's files in a container (root and systemd-nspawn are needed). Exit status 1 when a goal is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import ExitStack
from pathlib import Path

import yaml

from llmgw_agent.process.end import send_signal
from llmgw_agent.process.identity import Owner
from llmgw_agent.process.scan import find_marked
from llmgw_base.clock import SystemClock
from llmgw_base.etcd.client import EtcdStore
from llmgw_proto import keyspace
from llmgw_proto.records import ClusterRecord, ShardRecord

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from llmgw_testing.agent_harness import SECRET, fake_wish, remove_homes
from llmgw_testing.etcd_server import EtcdServer
from llmgw_testing.nspawn import Machine
from llmgw_testing.wait import eventually

ADOPT, SUPERVISE, KILLS, ROUNDS = 8, 16, 10, 3
GOALS = {"adoption": 2.0, "death": 0.1, "core": 0.01}
PATIENCE = 120.0


class Bench:
    def __init__(self, folder: Path, etcd: EtcdServer, isolation: str, machine: Machine | None) -> None:
        self.node = f"bench-{uuid.uuid4().hex[:8]}"
        self.store = EtcdStore(etcd.section(), SystemClock())
        self._machine, self._log = machine, folder / "agent.log"
        self._config = folder / "agent.yaml"
        config = {
            "node": {"name": self.node, "reserved_memory": "0"},
            "state_dir": str(folder / "state"),
            "listen": "127.0.0.1:0",
            "metrics": {"listen": None},
            "etcd": {"endpoints": [etcd.endpoint]},
            "engines": {"isolation": isolation, "stop_seconds": 1},
            "restart": {"first_delay": 0.1, "longest_delay": 0.1, "attempts": 1000},
        }
        self._config.write_text(yaml.safe_dump(config))

    def start(self) -> int:
        """The agent's process id, as this host sees it."""
        argv = [sys.executable, "-m", "llmgw_agent", "--config", str(self._config)]
        environment = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        with self._log.open("ab") as log:
            if self._machine is None:
                return subprocess.Popen(
                    argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=os.environ | environment
                ).pid
        options = [f"--setenv={name}={value}" for name, value in environment.items()]
        options += [f"--property=Standard{each}=append:{self._log}" for each in ("Output", "Error")]
        unit = f"agent-{time.time_ns()}"
        self._machine.run("systemd-run", "--quiet", "--collect", f"--unit={unit}", *options, *argv)
        return self.on_host(int(self._machine.run("systemctl", "show", "--value", "--property=MainPID", unit)))

    def on_host(self, pid: int) -> int:
        """The number by which this host knows a process of the machine's."""
        if self._machine is None:
            return pid
        for status in Path("/proc").glob("[0-9]*/status"):
            try:
                numbers = next(line.split()[1:] for line in status.read_text().splitlines() if line.startswith("NSpid:"))
            except OSError:
                continue
            if len(numbers) == 2 and int(numbers[1]) == pid:
                return int(numbers[0])
        raise LookupError(f"process {pid} is not in the machine")

    async def wish(self, count: int) -> None:
        for number in range(count):
            wish = fake_wish(f"m{number}")
            await self.store.put(keyspace.assignment(self.node, wish.shard), wish.encode())

    async def ready(self, count: int, after: float = 0.0, shard: str = "") -> dict[str, ShardRecord]:
        """Waits until so many shards (of that name, if one is given) were said to be Ready later than that."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            listed = await self.store.range(keyspace.shards_of(self.node))
            records = [ShardRecord.decode(each.value) for each in listed.items]
            found = {
                each.shard: each
                for each in records
                if each.state == "Ready" and each.updated_at > after and shard in each.shard
            }
            if len(found) >= count:
                return found
            await asyncio.sleep(0.01)
        raise TimeoutError(f"{count} replicas are not ready; see {self._log}:\n{self._log.read_text()[-3000:]}")

    async def adoption(self, pid: int) -> tuple[float, int]:
        """Seconds from the start of the program; and its process id."""
        end(pid, signal.SIGKILL)
        await asyncio.sleep(1)
        began, wall = time.monotonic(), time.time()
        pid = self.start()
        await self.ready(ADOPT, after=wall)
        return time.monotonic() - began, pid

    async def death(self) -> float:
        """Seconds from SIGKILL until the endpoint is gone."""
        record = (await self.ready(1))["m0-1.0"]
        key, pid = keyspace.endpoint(self.node, record.replica), self.on_host(record.pid or 0)
        began = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        while await self.store.get(key) is not None:  # noqa: ASYNC110 - asked from outside, as often as it can be
            await asyncio.sleep(0.001)
        took = time.monotonic() - began
        await self.ready(1, after=record.updated_at, shard="m0-1.0")
        return took


def end(pid: int, number: signal.Signals) -> None:
    os.kill(pid, number)
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        return


def processor(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(bench: Bench, seconds: float) -> bool:
    record = ClusterRecord(id="bench", name="bench", created_at=time.time(), engine_secret=SECRET)
    await bench.store.put(keyspace.CLUSTER, record.encode())
    pid = bench.start()
    try:
        await bench.wish(ADOPT)
        await bench.ready(ADOPT)
        adoptions = []
        for _ in range(ROUNDS):
            took, pid = await bench.adoption(pid)
            adoptions.append(took)
        print(f"adoption of {ADOPT} replicas: {statistics.median(adoptions):.2f} s (worst {max(adoptions):.2f}; goal 2)")
        deaths = [await bench.death() for _ in range(KILLS)]
        middle, worst = statistics.median(deaths) * 1000, max(deaths) * 1000
        print(f"death of an engine, until etcd knows: {middle:.0f} ms (worst {worst:.0f}; goal 100)")
        await bench.wish(SUPERVISE)
        await bench.ready(SUPERVISE)
        await asyncio.sleep(10)
        before = processor(pid)
        await asyncio.sleep(seconds)
        share = (processor(pid) - before) / seconds
        print(f"supervision of {SUPERVISE} replicas: {share:.2%} of one core over {seconds:g} s (goal 1 %)")
        return (
            statistics.median(adoptions) < GOALS["adoption"]
            and statistics.median(deaths) < GOALS["death"]
            and share < GOALS["core"]
        )
    finally:
        end(pid, signal.SIGKILL)
        for each in find_marked(bench.node):
            send_signal(each.identity, signal.SIGKILL)
        await eventually(lambda: remove_homes(Owner("bench", bench.node)), within=PATIENCE, what="cgroups to be empty")
        await bench.store.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isolation", choices=("auto", "systemd", "cgroup", "group"), default="auto")
    parser.add_argument("--seconds", type=float, default=30, help="how long supervision is measured")
    args = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        machine = stack.enter_context(Machine(folder)) if args.isolation == "systemd" else None
        etcd = stack.enter_context(EtcdServer())
        print(f"engines.isolation: {args.isolation}; load average before: {os.getloadavg()[0]:.1f}")
        return 0 if asyncio.run(measure(Bench(folder, etcd, args.isolation, machine), args.seconds)) else 1


if __name__ == "__main__":
    sys.exit(main())
