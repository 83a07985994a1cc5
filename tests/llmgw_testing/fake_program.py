"""The fake engine as a program that a supervisor can start: `python -m llmgw_testing.fake_engine --port N --model M`.

`--script` names how it behaves:

    normal          ready at once; answers as an engine does
    slow            ready at once; one token every 0.5 s (its counters advance)
    slow-start      listens at once, `/health` answers 503 for `--delay` seconds (default 2), then as normal
    never-ready     listens; `/health` answers 503 for ever
    no-listen       runs and never opens its port
    exit-1          prints a reason to stderr and exits with 1 at once
    crash-later     as normal, exits with 1 after `--delay` seconds
    wedge           `/health` is 200, generation requests get no byte, counters stand still
    double-fork     as normal, but first leaves a child in its own session behind (its pid is printed)
    ignore-sigterm  as normal, SIGTERM does nothing
    flood           as normal, and writes to stdout without end

SIGUSR1 makes it wedge from then on. With `--no-metrics` there is no `/metrics`. `--kv-events-config` makes it publish a batch
of KV-cache events ten times a second, as vLLM does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import threading
import time
from typing import Any

from llmgw_testing.fake_engine import FakeEngine
from llmgw_testing.kv_publisher import KvPublisher

SCRIPTS = (
    "normal",
    "slow",
    "slow-start",
    "never-ready",
    "no-listen",
    "exit-1",
    "crash-later",
    "wedge",
    "double-fork",
    "ignore-sigterm",
    "flood",
)
FLOOD_LINE = "x" * 199


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="fake_engine", description="A fake OpenAI engine that misbehaves on demand")
    parser.add_argument("--port", type=int, required=True, help="0 takes a free one; the start line on stdout names it")
    parser.add_argument("--model", action="append", required=True, help="served model name; may be repeated")
    parser.add_argument("--api-key")
    parser.add_argument("--script", choices=SCRIPTS, default="normal")
    parser.add_argument("--delay", type=float, default=2.0, help="seconds, for slow-start and crash-later")
    parser.add_argument("--tokens", type=int, default=5, help="words in an answer")
    parser.add_argument("--token-seconds", type=float, default=0.0)
    parser.add_argument("--no-metrics", action="store_true")
    parser.add_argument("--kv-events-config", type=json.loads)
    options = parser.parse_args(argv)
    script: str = options.script

    if script == "exit-1":
        print("RuntimeError: CUDA error: out of memory (made up)", file=sys.stderr, flush=True)
        return 1
    if script == "double-fork":
        leave_child_behind()
    stopped = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: stopped.set())
    signal.signal(signal.SIGTERM, signal.SIG_IGN if script == "ignore-sigterm" else lambda *_: stopped.set())
    if script == "no-listen":
        stopped.wait()
        return 0

    pace = 0.5 if script == "slow" else options.token_seconds
    engine = FakeEngine(*options.model, api_key=options.api_key, tokens=options.tokens, token_seconds=pace)
    engine.engine.healthy = script not in ("never-ready", "slow-start")
    engine.engine.wedged = script == "wedge"
    engine.engine.metered = not options.no_metrics
    signal.signal(signal.SIGUSR1, lambda *_: setattr(engine.engine, "wedged", True))
    with engine.start(options.port):
        print(f"fake engine listening on {engine.url} pid {os.getpid()} script {script}", flush=True)
        if options.kv_events_config is not None:
            threading.Thread(target=publish, args=(options.kv_events_config,), daemon=True).start()
        if script == "flood":
            threading.Thread(target=flood, daemon=True).start()
        if script == "slow-start" and not stopped.wait(options.delay):
            engine.engine.healthy = True
        if script == "crash-later" and not stopped.wait(options.delay):
            print("Segmentation fault (made up)", file=sys.stderr, flush=True)
            return 1
        stopped.wait()
    return 0


def leave_child_behind() -> None:
    """A grandchild in its own session, as a worker that a crashed engine leaves on the GPU."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        grandchild = os.fork()
        if grandchild == 0:
            os.close(read)
            os.close(write)
            while True:
                time.sleep(3600)
        os.write(write, str(grandchild).encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    print(f"child left behind: {os.read(read, 32).decode()}", flush=True)
    os.close(read)


def publish(config: dict[str, Any]) -> None:
    assert config["enable_kv_cache_events"], config

    async def run() -> None:
        publisher = KvPublisher(topic=config["topic"], ring=config["buffer_steps"])
        publisher.endpoint, publisher.replay_endpoint = config["endpoint"], config["replay_endpoint"]
        async with publisher:
            while True:
                hashes = [os.getpid()]
                await publisher.publish({"type": "BlockStored", "block_hashes": hashes, "token_ids": [1], "block_size": 1})
                await asyncio.sleep(0.1)

    asyncio.run(run())


def flood() -> None:
    while True:
        print(FLOOD_LINE, flush=True)
