"""The router's benchmark: mock engines, nginx as the limit, the newest Rust routers, llmgw; interleaved in one run.

About eight minutes with the defaults. Needs gcc, nginx and wrk (Debian: apt-get install gcc nginx-light wrk) and, at first
use, PyPI for the other routers.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.router.load import at_rate, with_open_streams, wrk
from bench.router.report import KINDS, OURS, Results, write
from bench.router.targets import MAKERS, ROOT, BenchError, Target, free_port

HERE = Path(__file__).resolve().parent
PARTS = ("cpu", "latency", "memory", "long")
CONNECTIONS = {"nonstream": 32, "burst": 32, "scattered": 32, "paced": 64}


def compile_c(name: str, folder: Path) -> Path:
    program = folder / name
    subprocess.run(["gcc", "-O2", "-o", str(program), str(HERE / f"{name}.c")], check=True)
    return program


def command(arguments: list[str]) -> str:
    """How to run this again, from the root of the repository."""
    kept = " ".join(each for each, before in zip(arguments, ["", *arguments], strict=False) if "--output" not in (each, before))
    return f"python -m bench.router {kept}" if kept else "make bench"


def say(text: str) -> None:
    print(text, flush=True)


def measure_cpu(results: Results, targets: list[Target], kinds: list[str], rounds: int, seconds: int) -> None:
    for kind in kinds:
        table = results.rounds.setdefault(kind, {target.name: [] for target in targets})
        length = seconds if kind != "paced" else 2 * seconds
        for target in targets:
            wrk(target, kind, seconds=1, connections=CONNECTIONS[kind])
        for number in range(rounds if kind != "paced" else max(1, rounds - 2)):
            for target in targets:
                found = wrk(target, kind, seconds=length, connections=CONNECTIONS[kind])
                table[target.name].append(found)
                say(f"{kind} round {number + 1} {target.name}: {found.cpu_us:.1f} µs/request, {found.per_second:.0f}/s")


def measure_latency(results: Results, targets: list[Target], generator: Path, engine: int, rounds: int, seconds: int) -> None:
    ours = next((target for target in targets if target.name == OURS), targets[0])
    results.rate = wrk(ours, "nonstream", seconds=seconds, connections=32).per_second / 2
    ports = {"direct": engine, **{target.name: target.port for target in targets}}
    for _ in range(max(1, rounds - 2)):
        for name, port in ports.items():
            found = at_rate(generator, port, results.rate, seconds=seconds)
            results.latencies.setdefault(name, []).append(found)
            say(f"latency at {results.rate:.0f}/s {name}: p50 {found.p50} p99 {found.p99} µs, late {found.late}")


def measure_memory(results: Results, targets: list[Target], streams: int) -> None:
    results.streams = streams
    for target in targets:

        async def measure(target: Target = target) -> None:
            await asyncio.sleep(2)
            results.stream_memory[target.name] = target.resident_bytes()

        asyncio.run(with_open_streams(target.port, streams, measure))
        sizes = results.stream_memory[target.name]
        say(f"{streams} streams {target.name}: " + ", ".join(f"{size / 1e6:.1f} MB" for size in sizes))


@contextmanager
def priority(targets: list[Target], nice: int) -> Iterator[None]:
    """Runs the light loads ahead of other work on the machine, which would make them look slow; the heavy ones must share."""

    def put(level: int) -> None:
        pids = [os.getpid(), *(process.pid for target in targets for process in target.processes())]
        for pid in pids:
            for thread in Path(f"/proc/{pid}/task").iterdir():
                os.setpriority(os.PRIO_PROCESS, int(thread.name), level)

    if nice:
        put(nice)
    yield
    if nice:
        put(0)


def measure_long(results: Results, target: Target, total: int, limit: float) -> None:
    """Plain requests and, every third time, streams."""
    done, end = 0, time.monotonic() + limit
    while done < total and time.monotonic() < end:
        kind = "burst" if len(results.long_run) % 3 == 2 else "nonstream"
        done += wrk(target, kind, seconds=5, connections=32).requests
        results.long_run.append((done, max(target.resident_bytes())))
        say(f"long run: {done} requests, {results.long_run[-1][1] / 1e6:.1f} MB")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.router", description=__doc__)
    parser.add_argument("--targets", default=",".join(MAKERS), help="default: %(default)s")
    parser.add_argument("--parts", default=",".join(PARTS), help="default: %(default)s")
    parser.add_argument("--kinds", default=",".join(KINDS), help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=3, help="of each load; paced streams take twice as long")
    parser.add_argument("--requests", type=int, default=1_000_000, help="of the long run")
    parser.add_argument("--long-limit", type=float, default=240.0, help="seconds the long run may take")
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument(
        "--nice", type=int, default=0, help="for the light loads (paced, latency, memory) on a busy machine; -15, say"
    )
    parser.add_argument("--output", type=Path, default=ROOT / "bench" / "RESULTS.md")
    options = parser.parse_args()
    names, parts = options.targets.split(","), options.parts.split(",")
    try:
        with tempfile.TemporaryDirectory(prefix="llmgw-bench-") as text, ExitStack() as stack:
            folder = Path(text)
            ports = [free_port(), free_port()]
            engine = Target("mock-engine", "", ports[0], [str(compile_c("mock_engine", folder)), *map(str, ports)], folder)
            stack.callback(engine.stop)
            engine.start()
            targets = []
            for name in names:
                target = MAKERS[name](folder, ports)
                stack.callback(target.stop)
                target.start()
                targets.append(target)
            results = Results({target.name: target.version for target in targets})
            results.load_average = os.getloadavg()[0]
            results.nice = options.nice
            results.command = command(sys.argv[1:])
            kinds = options.kinds.split(",") if "cpu" in parts else []
            measure_cpu(results, targets, [kind for kind in kinds if kind != "paced"], options.rounds, options.seconds)
            with priority([engine, *targets], options.nice):
                measure_cpu(results, targets, [kind for kind in kinds if kind == "paced"], options.rounds, options.seconds)
                if "latency" in parts:
                    generator = compile_c("rate_load", folder)
                    measure_latency(results, targets, generator, ports[0], options.rounds, options.seconds)
                if "memory" in parts:
                    measure_memory(results, targets, options.streams)
            ours = [target for target in targets if target.name == OURS]
            if "long" in parts and ours:
                measure_long(results, ours[0], options.requests, options.long_limit)
            write(results, options.output)
    except (BenchError, KeyError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    say(f"written: {options.output}")
    return 0
