from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmgw_agent.weights import DiskError, NoSpaceError
from llmgw_testing.file_server import FileServer
from llmgw_testing.wait import eventually
from llmgw_testing.weights import MIB, data, opened, sha256

BIG = data(6 * MIB, seed=41)


@contextlib.contextmanager
def small_disk(path: Path, size: int) -> Iterator[Path]:
    """A tmpfs of ``size`` bytes at ``path`` (needs root, as the agent itself does)."""
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def fill(disk: Path) -> None:
    """Someone else uses all that is left."""
    with (disk / "other").open("wb", buffering=0) as other, contextlib.suppress(OSError):
        while True:
            other.write(bytes(1 << 12))


def test_what_cannot_fit_is_refused_before_it_is_fetched(tmp_path: Path) -> None:
    async def run() -> None:
        with small_disk(tmp_path / "disk", 4 * MIB) as disk:
            async with FileServer() as server, opened(disk) as store:
                server.put("/m.bin", BIG)
                ahead = await store.preflight(server.url("/m.bin"))
                assert (ahead.needed, ahead.fits) == (len(BIG), False)
                with pytest.raises(
                    NoSpaceError, match=f"{len(BIG)} bytes .* are needed but .* are free under {disk}"
                ) as caught:
                    await store.ensure(server.url("/m.bin"))
                assert caught.value.needed == len(BIG)
                assert 0 < caught.value.free <= 4 * MIB
                assert server.gets("/m.bin") == []

    asyncio.run(run())


@pytest.mark.parametrize("size_known", [True, False])
def test_a_disk_that_fills_up_in_the_middle_costs_nothing_and_the_rest_is_fetched_later(
    tmp_path: Path, size_known: bool
) -> None:
    async def run() -> None:
        with small_disk(tmp_path / "disk", 9 * MIB) as disk:
            async with FileServer() as server, opened(disk) as store:
                server.put("/old.bin", data(1000))
                old = await store.ensure(server.url("/old.bin"), pin="runs")
                served = server.put("/m.bin", BIG, bytes_per_second=4 * MIB, chunked=not size_known)
                source = f"{server.url('/m.bin')}#sha256={sha256(BIG)}"
                task = asyncio.create_task(store.ensure(source))
                await eventually(lambda: server.sent("/m.bin") > MIB, within=40, what="the download")
                fill(disk)
                with pytest.raises(NoSpaceError, match=r"m\.bin: .* kept and continued") as caught:
                    await task
                assert caught.value.needed >= 1
                assert old.path.read_bytes() == data(1000)
                (disk / "other").unlink()
                kept = (disk / "partial" / f"sha256-{sha256(BIG)}").stat().st_size
                assert kept > MIB
                served.bytes_per_second = None
                assert (await store.ensure(source)).path.read_bytes() == BIG
                assert server.gets("/m.bin")[-1].range == f"bytes={kept}-"

    asyncio.run(run())


def test_room_is_made_by_what_is_not_used(tmp_path: Path) -> None:
    async def run() -> None:
        with small_disk(tmp_path / "disk", 9 * MIB) as disk:
            async with FileServer() as server, opened(disk) as store:
                server.put("/a.bin", BIG)
                server.put("/b.bin", data(5 * MIB, seed=42))
                await store.ensure(server.url("/a.bin"))
                await store.ensure(server.url("/b.bin"))
                assert [each.source for each in await store.list()] == [server.url("/b.bin")]

    asyncio.run(run())


@pytest.mark.parametrize("size_known", [True, False])
def test_the_reserve_is_left_to_others(tmp_path: Path, size_known: bool) -> None:
    async def run() -> None:
        with small_disk(tmp_path / "disk", 9 * MIB) as disk:
            async with FileServer() as server, opened(disk, reserve_bytes=4 * MIB) as store:
                server.put("/a.bin", BIG, chunked=not size_known)
                with pytest.raises(NoSpaceError) as caught:
                    await store.ensure(server.url("/a.bin"))
                assert caught.value.free <= 5 * MIB
                facts = os.statvfs(disk)
                assert facts.f_bavail * facts.f_frsize > 2 * MIB

    asyncio.run(run())


def test_a_size_that_only_the_answer_tells_is_judged_before_the_body(tmp_path: Path) -> None:
    async def run() -> None:
        with small_disk(tmp_path / "disk", 4 * MIB) as disk:
            async with FileServer() as server, opened(disk) as store:
                server.put("/a.bin", BIG, head=False)
                with pytest.raises(NoSpaceError) as caught:
                    await store.ensure(server.url("/a.bin"))
                assert caught.value.needed == len(BIG)
                assert all(each.stat().st_size < MIB for each in (disk / "partial").iterdir())

    asyncio.run(run())


def test_on_a_full_disk_a_model_that_is_here_still_starts(tmp_path: Path) -> None:
    async def run() -> None:
        with small_disk(tmp_path / "disk", 2 * MIB) as disk:
            async with FileServer() as server:
                server.put("/a.bin", data(1000))
                async with opened(disk) as store:
                    first = await store.ensure(server.url("/a.bin"))
                fill(disk)
                async with opened(disk) as store:
                    assert await store.ensure(server.url("/a.bin")) == first

    asyncio.run(run())


def test_a_store_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    async def run() -> None:
        async with FileServer() as server, opened(tmp_path) as store:
            server.put("/a.bin", data(1000))
            (tmp_path / "partial").rmdir()
            (tmp_path / "partial").write_bytes(b"in the way")
            with pytest.raises(DiskError, match=f"the store under {tmp_path} cannot be used"):
                await store.ensure(server.url("/a.bin"))

    asyncio.run(run())
