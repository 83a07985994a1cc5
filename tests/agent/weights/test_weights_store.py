from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_agent.weights import InUseError, NoSpaceError, SourceNotFoundError
from llmgw_agent.weights.eviction import Kept, choose, occupied
from llmgw_testing.file_server import Fault, FileServer
from llmgw_testing.steady import steady
from llmgw_testing.weights import data, gguf, opened, sha256

SIZE = 10_000


def serve(server: FileServer, count: int) -> list[str]:
    for each in range(count):
        server.put(f"/{each}.bin", data(SIZE, seed=each))
    return [server.url(f"/{each}.bin") for each in range(count)]


def test_least_recently_used_goes_beyond_the_limit(tmp_path: Path) -> None:
    async def run() -> None:
        async with FileServer() as server, opened(tmp_path, limit_bytes=3 * SIZE) as store:
            a, b, c, d = serve(server, 4)
            for each in (a, b, c, a):
                await store.ensure(each)
            weights = await store.ensure(d)
            assert weights.path.exists()
            assert {each.source for each in await store.list()} == {a, c, d}
            assert len(list((tmp_path / "blobs" / "sha256").iterdir())) == 3
            assert len(list((tmp_path / "content").glob("*.bin-*"))) >= 3

    asyncio.run(run())


def test_what_runs_is_never_evicted_even_after_a_restart(tmp_path: Path) -> None:
    async def run() -> None:
        async with FileServer() as server:
            a, b, c, d = serve(server, 4)
            async with opened(tmp_path, limit_bytes=2 * SIZE) as store:
                await store.ensure(a, pin="chat-1/0")
                await store.ensure(b)
            async with opened(tmp_path, limit_bytes=2 * SIZE) as store:
                await store.ensure(c)
                assert {each.source: each.pinned_by for each in await store.list()} == {a: ["chat-1/0"], c: []}
                with pytest.raises(InUseError, match="chat-1/0"):
                    await store.remove(a)
                await store.pin(c, "other")
                with pytest.raises(NoSpaceError, match=r"limit_bytes is 20000") as caught:
                    await store.ensure(d)
                assert caught.value.needed == SIZE
                assert {each.source for each in await store.list()} == {a, c}
                assert await store.release_others({"other"}) == ["chat-1/0"]
                await store.ensure(d)
                assert {each.source for each in await store.list()} == {c, d}

    asyncio.run(run())


def test_a_failed_fetch_leaves_no_pin(tmp_path: Path) -> None:
    async def run() -> None:
        async with FileServer() as server, opened(tmp_path, attempts=1) as store:
            with pytest.raises(SourceNotFoundError):
                await store.ensure(server.url("/none.bin"), pin="shard")
            assert not list((tmp_path / "pins").iterdir())

    asyncio.run(run())


def test_shared_content_stays_until_its_last_user_goes(tmp_path: Path) -> None:
    async def run() -> None:
        async with FileServer() as server, opened(tmp_path) as store:
            server.put("/a.bin", data(SIZE))
            server.put("/b.bin", data(SIZE))
            a, b = server.url("/a.bin"), server.url("/b.bin")
            await store.ensure(a)
            kept = await store.ensure(b)
            assert await store.remove(a) == 0
            assert len(list((tmp_path / "blobs" / "sha256").iterdir())) == 1
            assert kept.path.read_bytes() == data(SIZE)
            assert await store.remove(kept.key) == SIZE
            assert await store.list() == []
            assert not list((tmp_path / "blobs" / "sha256").iterdir())
            with pytest.raises(SourceNotFoundError, match="llmgwctl weights list"):
                await store.remove(b)

    asyncio.run(run())


def test_files_in_place_are_used_and_never_copied_or_removed(tmp_path: Path) -> None:
    async def run() -> None:
        folder = tmp_path / "models"
        folder.mkdir()
        for number in (1, 2):
            (folder / f"m-{number:05}-of-00002.gguf").write_bytes(
                gguf({"general.architecture": "qwen3", "qwen3.block_count": 7})
            )
        path = folder / "m-00001-of-00002.gguf"
        async with opened(tmp_path / "root") as store:
            weights = await store.ensure(f"file://{path}")
            assert weights.path == path
            assert weights == await store.ensure(str(path))
            assert weights.total_bytes == 2 * path.stat().st_size
            assert weights.facts is not None
            assert (weights.facts.architecture, weights.facts.layers, weights.facts.parameters) == ("qwen3", 7, 256)
            path.write_bytes(gguf({"general.architecture": "gemma3"}))
            changed = await store.ensure(str(path))
            assert changed.facts is not None
            assert changed.facts.architecture == "gemma3"
            with pytest.raises(SourceNotFoundError, match="delete it there"):
                await store.remove(str(path))
            await store.pin(str(path), "x")
            assert (await store.preflight(str(path))).needed == 0
            assert not list((tmp_path / "root" / "blobs" / "sha256").iterdir())
            with pytest.raises(SourceNotFoundError, match="does not exist on this node"):
                await store.ensure(str(folder / "none.gguf"))
            (folder / "m-00002-of-00002.gguf").unlink()
            with pytest.raises(SourceNotFoundError):
                await store.ensure(str(path))

    asyncio.run(run())


def test_a_header_that_cannot_be_read_is_told_and_does_not_stop(tmp_path: Path) -> None:
    async def run() -> None:
        path = tmp_path / "m.gguf"
        path.write_bytes(gguf()[:40])
        async with opened(tmp_path / "root") as store:
            weights = await store.ensure(str(path))
            assert weights.facts is None
            assert weights.facts_problem == "m.gguf: the file ends inside its header, at byte 40"

    asyncio.run(run())


def test_verify_finds_what_the_disk_lost(tmp_path: Path) -> None:
    async def run() -> None:
        async with FileServer() as server, opened(tmp_path) as store:
            (source,) = serve(server, 1)
            weights = await store.ensure(source)
            assert await store.verify(source) == []
            facts = weights.path.stat()
            weights.path.chmod(0o644)
            weights.path.write_bytes(data(SIZE, seed=99))
            os.utime(weights.path, ns=(facts.st_atime_ns, facts.st_mtime_ns))  # as a failing disk would: unnoticed
            assert await store.verify(source) == ["0.bin"]
            assert (await store.ensure(source)).path.read_bytes() == data(SIZE, seed=0)

    asyncio.run(run())


def test_sweep_removes_what_a_crash_left(tmp_path: Path) -> None:
    async def run() -> None:
        async with FileServer() as server, opened(tmp_path, attempts=1, stale_seconds=3600) as store:
            (source,) = serve(server, 1)
            await store.ensure(source)
            (tmp_path / "blobs" / "sha256" / ("0" * 64)).write_bytes(b"orphan")
            (tmp_path / "content" / "gone-0123").mkdir()
            assert await store.sweep() == 2
            server.put("/cut.bin", data(SIZE), always=Fault(cut=100))
            server.files["/cut.bin"].ranges = False
            with pytest.raises(Exception, match="broke off"):
                await store.ensure(server.url("/cut.bin"))
            assert await store.sweep() == 0, "a fresh part is kept"
            assert len(list((tmp_path / "partial").iterdir())) == 2
        async with opened(tmp_path, stale_seconds=0.001) as store:
            assert await store.sweep() == 3
            assert not list((tmp_path / "partial").iterdir())
            assert len(await store.list()) == 1

    asyncio.run(run())


@pytest.mark.parametrize("folder", ["manifests", "records"])
@pytest.mark.parametrize("length", [0, 1, 40])
def test_a_truncated_description_is_made_again_without_a_download(tmp_path: Path, folder: str, length: int) -> None:
    async def run() -> None:
        async with FileServer() as server, opened(tmp_path) as store:
            server.put("/m.bin", data(SIZE))
            source = f"{server.url('/m.bin')}#sha256={sha256(data(SIZE))}"
            await store.ensure(source)
            for each in (tmp_path / folder).iterdir():
                each.write_bytes(each.read_bytes()[:length])
            assert (await store.ensure(source)).path.read_bytes() == data(SIZE)
            assert len(server.gets("/m.bin")) == 1

    asyncio.run(run())


SMALL = st.integers(1, 50)
BLOBS = st.dictionaries(st.sampled_from("abcdefgh"), st.just(0), min_size=1, max_size=4)


@st.composite
def stores(draw: st.DrawFn) -> list[Kept]:
    sizes = {name: draw(SMALL) for name in "abcdefgh"}
    count = draw(st.integers(0, 6))
    return [
        Kept(f"k{each}", draw(st.integers(0, 9)), {name: sizes[name] for name in draw(BLOBS)}, draw(st.booleans()))
        for each in range(count)
    ]


@steady
@given(stores(), st.integers(0, 200))
def test_eviction_frees_enough_touches_nothing_fixed_and_nothing_in_vain(kept: list[Kept], to_free: int) -> None:
    chosen = choose(kept, to_free=to_free)
    movable = [each for each in kept if not each.fixed]
    most = occupied(kept) - occupied([each for each in kept if each.fixed])
    if chosen is None:
        assert most < to_free
        return
    assert most >= to_free
    assert set(chosen) <= {each.key for each in movable}

    def freed(keys: list[str]) -> int:
        return occupied(kept) - occupied([each for each in kept if each.key not in keys])

    assert freed(chosen) >= to_free
    for each in chosen:
        assert freed([one for one in chosen if one != each]) < to_free


def test_eviction_takes_the_oldest() -> None:
    kept = [Kept("new", 3, {"a": 10}, False), Kept("old", 1, {"b": 10}, False), Kept("pinned", 0, {"c": 10}, True)]
    assert choose(kept, to_free=1) == ["old"]
    assert choose(kept, to_free=11) == ["old", "new"]
    assert choose(kept, to_free=21) is None
    assert choose(kept, to_free=0) == []
