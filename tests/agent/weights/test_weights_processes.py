from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

from llmgw_testing.file_server import FileServer
from llmgw_testing.wait import eventually
from llmgw_testing.weights import MIB, data, opened, sha256

BIG = data(4 * MIB, seed=31)
PROGRAM = """
import asyncio, sys
from pathlib import Path
from llmgw_agent.weights import WeightStore, WeightsSettings
from llmgw_base.clock import SystemClock

async def main(root, source):
    settings = WeightsSettings(allow_networks=["127.0.0.0/8"], reserve_bytes=0)
    async with WeightStore(Path(root), clock=SystemClock(), settings=settings) as store:
        print("asking", flush=True)
        weights = await store.ensure(source)
        print(weights.path, flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


async def start(root: Path, source: str) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, str(root), source, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"asking\n"
    return process


async def finish(process: asyncio.subprocess.Process) -> bytes:
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0
    return out.strip()


def content(path: bytes) -> bytes:
    return Path(path.decode()).read_bytes()


def test_after_sigkill_only_the_rest_is_fetched(tmp_path: Path) -> None:
    async def run() -> None:
        async with FileServer() as server:
            served = server.put("/m.bin", BIG, bytes_per_second=MIB)
            source = server.url("/m.bin")
            process = await start(tmp_path, source)

            def parts() -> int:
                return sum(each.stat().st_size for each in (tmp_path / "partial").glob("url-*") if each.suffix != ".json")

            await eventually(lambda: parts() > MIB, within=40, what="a part of the download")
            process.send_signal(signal.SIGKILL)
            await process.wait()
            kept = parts()
            served.bytes_per_second = None
            async with opened(tmp_path) as store:
                assert (await store.ensure(source)).path.read_bytes() == BIG
            assert server.gets("/m.bin")[-1].range == f"bytes={kept}-"
            assert server.gets("/m.bin")[-1].sent == len(BIG) - kept

    asyncio.run(run())


def test_after_a_power_cut_only_what_was_flushed_counts(tmp_path: Path) -> None:
    async def run() -> None:
        async with FileServer() as server:
            served = server.put("/m.bin", BIG, bytes_per_second=MIB)
            source = f"{server.url('/m.bin')}#sha256={sha256(BIG)}"
            process = await start(tmp_path, source)
            part = tmp_path / "partial" / f"sha256-{sha256(BIG)}"
            await eventually(lambda: part.exists() and part.stat().st_size > MIB, within=40, what="a part of the download")
            process.send_signal(signal.SIGKILL)
            await process.wait()
            state = part.with_name(f"{part.name}.json")
            state.write_text(json.dumps(json.loads(state.read_text()) | {"boot_id": "before", "flushed": MIB}))
            os.truncate(part, MIB)
            with part.open("ab") as file:
                file.write(bytes(MIB // 2))  # what a file system may show after a crash: length without content
            served.bytes_per_second = None
            async with opened(tmp_path) as store:
                assert (await store.ensure(source)).path.read_bytes() == BIG
            assert server.gets("/m.bin")[-1].range == f"bytes={MIB}-"

    asyncio.run(run())


def test_two_processes_share_one_download(tmp_path: Path) -> None:
    async def run() -> None:
        async with FileServer() as server:
            server.put("/m.bin", BIG, bytes_per_second=4 * MIB)
            both = await asyncio.gather(*(start(tmp_path, server.url("/m.bin")) for _ in range(2)))
            first, second = await asyncio.gather(*(finish(each) for each in both))
            assert first == second
            assert content(first) == BIG
            assert server.sent("/m.bin") == len(BIG)

    asyncio.run(run())


def test_who_waits_takes_over_from_who_dies(tmp_path: Path) -> None:
    async def run() -> None:
        async with FileServer() as server:
            served = server.put("/m.bin", BIG, bytes_per_second=MIB)
            first = await start(tmp_path, server.url("/m.bin"))
            await eventually(lambda: server.sent("/m.bin") > MIB, within=40, what="the first one's download")
            second = await start(tmp_path, server.url("/m.bin"))
            first.send_signal(signal.SIGKILL)
            await first.wait()
            served.bytes_per_second = None
            assert content(await finish(second)) == BIG
            assert server.gets("/m.bin")[-1].range is not None

    asyncio.run(run())
