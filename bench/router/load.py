"""The loads: wrk for throughput, an open-loop generator for latency, many open streams for memory."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from bench.router.targets import KEY, BenchError, Target

LUA = """
wrk.method = "POST"
wrk.body = [==[{body}]==]
wrk.headers["content-type"] = "application/json"
wrk.headers["authorization"] = "Bearer {key}"
"""


def body(kind: str) -> str:
    """A chat request of about 500 bytes; `kind` is nonstream, burst, scattered, paced or hold."""
    messages = [
        {"role": "system", "content": "You are a helpful assistant. Answer briefly and say when you do not know. " * 3},
        {"role": "user", "content": f"Why is the sky blue? ({kind})"},
    ]
    value = {"model": "m", "messages": messages, "max_tokens": 64, "temperature": 0.7}
    if kind != "nonstream":
        value["stream"] = True
    return json.dumps(value, separators=(",", ":"))


def request_bytes(kind: str) -> bytes:
    data = body(kind).encode()
    lines = [
        "POST /v1/chat/completions HTTP/1.1",
        "Host: bench",
        f"Authorization: Bearer {KEY}",
        "Content-Type: application/json",
    ]
    return "\r\n".join([*lines, f"Content-Length: {len(data)}", "", ""]).encode() + data


@dataclass
class Round:
    """One run of wrk against one target: requests completed, requests per second, CPU of the target per request in µs."""

    requests: int
    per_second: float
    cpu_us: float


def wrk(target: Target, kind: str, *, seconds: int, connections: int) -> Round:
    program = shutil.which("wrk")
    if program is None:
        raise BenchError("wrk is not installed; on Debian and Ubuntu: apt-get install nginx-light wrk")
    script = target.folder / f"{kind}.lua"
    script.write_text(LUA.format(body=body(kind), key=KEY))
    url = f"http://127.0.0.1:{target.port}/v1/chat/completions"
    argv = [program, "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "10s", "-s", str(script), url]
    before = target.cpu_ns()
    output = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=seconds + 30).stdout
    spent = target.cpu_ns() - before
    done = re.search(r"(\d+) requests in ([\d.]+)s", output)
    if done is None or "Non-2xx" in output or "Socket errors" in output:
        raise BenchError(f"{target.name} failed requests under {kind} load:\n{output}")
    requests = int(done.group(1))
    return Round(requests, requests / float(done.group(2)), spent / requests / 1000)


@dataclass
class Latency:
    """Latencies in µs at a fixed rate; `late` requests could not even be started in time."""

    done: int
    errors: int
    late: int
    p50: float
    p90: float
    p99: float
    p999: float


def at_rate(program: Path, port: int, rate: float, *, seconds: float, connections: int = 64) -> Latency:
    file = program.parent / "request"
    file.write_bytes(request_bytes("nonstream"))
    argv = [str(program), str(port), f"{rate:.0f}", str(seconds), str(connections), str(file)]
    run = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=seconds + 30)
    return Latency(**json.loads(run.stdout))


async def with_open_streams(port: int, count: int, measure: Callable[[], Awaitable[None]]) -> None:
    """Opens that many streams, waits until each has got its first event, calls `measure`, closes them all."""
    request = request_bytes("hold")
    gate = asyncio.Semaphore(50)
    writers: list[asyncio.StreamWriter] = []
    readers: list[asyncio.Task[None]] = []

    async def discard(reader: asyncio.StreamReader) -> None:
        while await reader.read(65536):
            pass

    async def one() -> None:
        async with gate:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writers.append(writer)
            writer.write(request)
            async with asyncio.timeout(20):
                await reader.readuntil(b"data: ")
            readers.append(asyncio.create_task(discard(reader)))

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(one())
        await measure()
    finally:
        for reader_task in readers:
            reader_task.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        for writer in writers:
            writer.close()
