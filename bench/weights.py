"""How fast weights come from a local mirror, hashing included, measured against curl.

    python bench/weights.py [--size MIB] [--rounds N] [--folder DIR]

Serves a file with nginx on loopback and fetches it in turns with curl (no digest) and with the weight store (SHA-256 promised,
so that all is verified, and flushed to the disk). Everything is in ``--folder``, by default in memory, so that the disk does
not decide. Prints one line for each round and the medians; exit status 1 when the store reaches less than 80 % of curl.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from llmgw_agent.weights import WeightsSettings, WeightStore
from llmgw_base.clock import SystemClock

CONFIG = """
daemon off; pid {root}/pid; error_log {root}/error.log; worker_processes 1; events {{}}
http {{ access_log off; sendfile on; tcp_nopush on; client_body_temp_path {root}/b; proxy_temp_path {root}/p;
fastcgi_temp_path {root}/f; uwsgi_temp_path {root}/u; scgi_temp_path {root}/s;
server {{ listen 127.0.0.1:{port}; root {root}/served; }} }}
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def make(path: Path, size: int) -> str:
    """A file of ``size`` bytes that does not compress; its SHA-256."""
    digest = hashlib.sha256()
    block = random.Random(1).randbytes(1 << 20)
    with path.open("wb") as file:
        for number in range(size >> 20):
            piece = number.to_bytes(8, "big") + block[8:]
            digest.update(piece)
            file.write(piece)
    return digest.hexdigest()


def processor_seconds() -> float:
    """Of this process and of its children that ended."""
    return sum(os.times()[:4])


def curl(url: str, to: Path) -> float:
    start = time.perf_counter()
    subprocess.run(["curl", "-sf", "-o", str(to), url], check=True)
    return time.perf_counter() - start


async def store(source: str, root: Path) -> tuple[float, float]:
    """Seconds for the whole ensure(), and the longest time that the event loop did not come around."""
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.005)
            longest = max(longest, time.perf_counter() - before - 0.005)

    settings = WeightsSettings(allow_networks=["127.0.0.0/8"], reserve_bytes=0)
    async with WeightStore(root, clock=SystemClock(), settings=settings) as weights:
        watcher = asyncio.create_task(watch())
        start = time.perf_counter()
        await weights.ensure(source)
        took = time.perf_counter() - start
        watcher.cancel()
    return took, longest


def run(root: Path, size: int, rounds: int) -> int:
    root.chmod(0o755)  # nginx's worker is another user
    (root / "served").mkdir()
    digest = make(root / "served" / "m.bin", size)
    port = free_port()
    (root / "nginx.conf").write_text(CONFIG.format(root=root, port=port))
    url = f"http://127.0.0.1:{port}/m.bin"
    results: list[tuple[float, float, float, float]] = []
    with subprocess.Popen(["nginx", "-c", str(root / "nginx.conf"), "-e", str(root / "error.log")]) as server:
        try:
            subprocess.run(
                ["curl", "-sf", "--retry", "20", "--retry-connrefused", "--retry-delay", "1", "-o", "/dev/null", url],
                check=True,
            )
            curl(url, root / "warm")
            for number in range(rounds):
                (root / "warm").unlink()
                before = processor_seconds()
                theirs = curl(url, root / "warm")
                between = processor_seconds()
                mine, lag = asyncio.run(store(f"{url}#sha256={digest}", root / "store"))
                after = processor_seconds()
                shutil.rmtree(root / "store")
                results.append((size / theirs / 1e6, size / mine / 1e6, between - before, after - between))
                print(
                    f"round {number + 1}: curl {results[-1][0]:.0f} MB/s with {results[-1][2]:.2f} s of processor, "
                    f"store {results[-1][1]:.0f} MB/s with {results[-1][3]:.2f} s; loop lag at most {lag * 1000:.0f} ms; "
                    f"load {os.getloadavg()[0]:.1f}",
                    flush=True,
                )
        finally:
            server.terminate()
    theirs, mine, their_work, my_work = (statistics.median(each) for each in zip(*results, strict=True))
    print(f"median: curl {theirs:.0f} MB/s ({their_work:.2f} s of processor), store {mine:.0f} MB/s ({my_work:.2f} s)")
    print(f"the store reaches {mine / theirs:.0%} of curl; wanted are 80 % on a machine with two free processors")
    return 0 if mine >= 0.8 * theirs else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=1024, help="MiB")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"))
    options = parser.parse_args()
    for program in ("nginx", "curl"):
        if shutil.which(program) is None:
            print(f"{program} is needed; install it (apt-get install {program})", file=sys.stderr)
            return 2
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        return run(Path(folder), options.size << 20, options.rounds)


if __name__ == "__main__":
    sys.exit(main())
