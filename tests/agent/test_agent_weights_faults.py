"""A full disk and a limit on the weights, in a running agent: what runs goes on, what is missing is said, nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from llmgw_testing.agent_harness import AgentHarness, fake_wish
from llmgw_testing.file_server import FileServer
from llmgw_testing.wait import eventually
from llmgw_testing.weights import MIB, data, sha256

BIG = data(6 * MIB, seed=71)
SMALL = data(MIB, seed=72)


@contextlib.contextmanager
def small_disk(path: Path, size: int) -> Iterator[Path]:
    """A tmpfs of ``size`` bytes at ``path`` (needs root, as the agent itself does)."""
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def settings(**changes: Any) -> dict[str, Any]:
    return {"allow_networks": ["127.0.0.0/8"], "reserve_bytes": 0, "attempts": 2} | changes


def source(files: FileServer, path: str, content: bytes) -> str:
    return f"{files.url(path)}#sha256={sha256(content)}"


def stored(agent: AgentHarness) -> set[str]:
    folder = (agent.config.weights.dir or agent.config.state_dir / "weights") / "blobs/sha256"
    return {each.name for each in folder.iterdir()}


def test_a_disk_that_fills_up_says_how_much_is_missing_and_others_run_on(tmp_path: Path) -> None:
    async def run() -> None:
        with small_disk(tmp_path / "disk", 9 * MIB) as disk:
            where = settings(dir=str(disk / "weights"))
            async with FileServer() as files, AgentHarness(tmp_path, weights=where) as agent:
                files.put("/small.bin", SMALL)
                served = files.put("/big.bin", BIG, bytes_per_second=2 * MIB)
                await agent.wish(fake_wish("a", source=source(files, "/small.bin", SMALL)))
                pid = (await agent.shard("a-1.0", "Ready")).pid
                await agent.wish(fake_wish("b", source=source(files, "/big.bin", BIG)))
                await eventually(lambda: files.sent("/big.bin") > MIB, within=40, what="the download")
                with (disk / "other").open("wb", buffering=0) as other, contextlib.suppress(OSError):
                    while True:
                        other.write(bytes(1 << 12))

                async def says_why() -> str | None:
                    record = await agent.record("b-1.0")
                    return record.reason if record is not None and record.state == "Failed" else None

                reason = await eventually(says_why, within=40, what="the reason")
                assert reason is not None
                assert "big.bin" in reason
                assert "bytes" in reason
                assert "are needed but 0 are free under" in reason
                assert "remove weights that are not used, or give it a larger disk" in reason
                running = await agent.shard("a-1.0", "Ready")
                assert running.pid == pid, "the other one runs on"
                kept = (disk / f"weights/partial/sha256-{sha256(BIG)}").stat().st_size
                assert kept > 0
                (disk / "other").unlink()
                served.bytes_per_second = None
                await agent.shard("b-1.0", "Ready", within=60)
                assert files.gets("/big.bin")[-1].range is not None, "continued, not fetched anew"

    asyncio.run(run())


def test_what_cannot_fit_is_refused_with_the_bytes_and_starts_once_there_is_room(tmp_path: Path) -> None:
    async def run() -> None:
        with small_disk(tmp_path / "disk", 4 * MIB) as disk:
            where = settings(dir=str(disk / "weights"))
            async with FileServer() as files, AgentHarness(tmp_path, weights=where) as agent:
                files.put("/big.bin", BIG)
                await agent.wish(fake_wish("b", source=source(files, "/big.bin", BIG)))
                record = await agent.shard("b-1.0", "Failed")
                assert f"{len(BIG)} bytes" in record.reason
                assert record.next_attempt_at is not None
                assert files.gets("/big.bin") == [], "nothing was fetched for that"
                subprocess.run(["mount", "-o", f"remount,size={9 * MIB}", str(disk)], check=True)  # noqa: ASYNC221 - short
                await agent.shard("b-1.0", "Ready", within=60)

    asyncio.run(run())


def test_beyond_the_limit_the_least_recently_used_go_and_never_what_runs(tmp_path: Path) -> None:
    contents = {name: data(2 * MIB, seed=80 + number) for number, name in enumerate("abcd")}

    async def run() -> None:
        async with FileServer() as files, AgentHarness(tmp_path, weights=settings(limit_bytes=6 * MIB)) as agent:
            for name, content in contents.items():
                files.put(f"/{name}.bin", content)

            async def serve(name: str, epoch: int = 1) -> None:
                await agent.wish(fake_wish(name, epoch=epoch, source=source(files, f"/{name}.bin", contents[name])))
                await agent.shard(f"{name}-1.0", "Ready")

            async def end(name: str) -> None:
                await agent.unwish(f"{name}-1.0")
                await agent.nothing_left(f"{name}-1.0", f"{name}-1")

            await serve("a")  # the oldest, and it runs on
            for name in "bc":
                await serve(name)
                await end(name)
            await serve("d")
            assert stored(agent) == {sha256(contents[each]) for each in "acd"}, "b was not used for longest"
            await serve("c", epoch=2)
            await agent.wish(fake_wish("b", epoch=2, source=source(files, "/b.bin", contents["b"])))
            record = await agent.shard("b-1.0", "Failed")
            assert "weights.limit_bytes" in record.reason
            assert f"{2 * MIB} bytes are needed" in record.reason
            assert stored(agent) == {sha256(contents[each]) for each in "acd"}, "all of these run"
            await end("d")
            await agent.shard("b-1.0", "Ready", within=60)
            assert stored(agent) == {sha256(contents[each]) for each in "abc"}

    asyncio.run(run())
