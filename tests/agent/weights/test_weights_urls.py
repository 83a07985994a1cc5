from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from llmgw_agent.weights import (
    AccessDeniedError,
    DigestMismatchError,
    Progress,
    SourceNotFoundError,
    SourceUnavailableError,
)
from llmgw_testing.file_server import Fault, FileServer
from llmgw_testing.wait import eventually
from llmgw_testing.weights import MIB, data, gguf, opened, sha256

BIG = data(3 * MIB)


def test_a_url_becomes_a_verified_file_that_is_asked_for_once(tmp_path: Path) -> None:
    async def run() -> None:
        seen: list[Progress] = []
        async with FileServer() as server, opened(tmp_path) as store:
            server.put("/m/model.bin", BIG)
            source = f"{server.url('/m/model.bin')}#sha256={sha256(BIG)}"
            weights = await store.ensure(source, progress=seen.append)
            assert weights.path.name == "model.bin"
            assert weights.path.read_bytes() == BIG
            assert weights.total_bytes == len(BIG)
            assert weights.digests == {"model.bin": f"sha256:{sha256(BIG)}"}
            assert seen[-1].phase == "ready"
            assert (seen[-1].bytes_done, seen[-1].bytes_total, seen[-1].bytes_fetched) == (len(BIG), len(BIG), len(BIG))
            before = len(server.seen)
            assert (await store.ensure(source)).path == weights.path
            assert len(server.seen) == before

    asyncio.run(run())


@pytest.mark.parametrize("head", [True, False])
@pytest.mark.parametrize("chunked", [True, False])
def test_without_a_digest_the_server_may_be_sparing_with_words(tmp_path: Path, head: bool, chunked: bool) -> None:
    async def run() -> None:
        async with FileServer() as server, opened(tmp_path) as store:
            server.put("/model.bin", BIG, head=head, chunked=chunked)
            weights = await store.ensure(server.url("/model.bin"))
            assert weights.digests == {"model.bin": f"sha256:{sha256(BIG)}"}

    asyncio.run(run())


@pytest.mark.parametrize("promised", [True, False])
def test_a_cut_is_continued_where_it_happened(tmp_path: Path, promised: bool) -> None:
    async def run() -> None:
        async with FileServer() as server, opened(tmp_path) as store:
            server.put("/model.bin", BIG, faults=[Fault(cut=MIB), Fault(cut=MIB)])
            weights = await store.ensure(server.url("/model.bin") + (f"#sha256={sha256(BIG)}" if promised else ""))
            assert weights.path.read_bytes() == BIG
            assert server.sent("/model.bin") == len(BIG)
            assert [each.range for each in server.gets("/model.bin")] == [None, f"bytes={MIB}-", f"bytes={2 * MIB}-"]

    asyncio.run(run())


def test_more_cuts_than_tries_do_no_harm_while_it_goes_on(tmp_path: Path) -> None:
    async def run() -> None:
        async with FileServer() as server, opened(tmp_path, attempts=2) as store:
            server.put("/model.bin", BIG, always=Fault(cut=len(BIG) // 4))
            weights = await store.ensure(server.url("/model.bin"))
            assert weights.path.read_bytes() == BIG

    asyncio.run(run())


def test_a_server_without_ranges_that_always_cuts_is_given_up(tmp_path: Path) -> None:
    async def run() -> None:
        async with FileServer() as server, opened(tmp_path, attempts=2) as store:
            server.put("/model.bin", BIG, ranges=False, always=Fault(cut=MIB))
            with pytest.raises(SourceUnavailableError, match=f"broke off after {MIB} of {len(BIG)} bytes"):
                await store.ensure(server.url("/model.bin"))
            assert len(server.gets("/model.bin")) <= 4

    asyncio.run(run())


def test_a_server_without_ranges_starts_over(tmp_path: Path) -> None:
    async def run() -> None:
        async with FileServer() as server, opened(tmp_path) as store:
            server.put("/model.bin", BIG, ranges=False, faults=[Fault(cut=MIB)])
            weights = await store.ensure(server.url("/model.bin"))
            assert weights.path.read_bytes() == BIG

    asyncio.run(run())


def test_another_version_in_the_middle_is_not_mixed_in(tmp_path: Path) -> None:
    async def run() -> None:
        other = data(len(BIG), seed=2)
        async with FileServer() as server, opened(tmp_path) as store:
            served = server.put("/model.bin", BIG, faults=[Fault(cut=MIB)])
            task = asyncio.create_task(store.ensure(server.url("/model.bin")))
            await eventually(lambda: server.sent("/model.bin") == MIB, within=20, what="the cut")
            served.data, served.etag = other, '"other"'
            weights = await task
            assert weights.path.read_bytes() == other
            assert server.gets("/model.bin")[-1].if_range is not None

    asyncio.run(run())


def test_without_any_validator_nothing_is_continued(tmp_path: Path) -> None:
    async def run() -> None:
        async with FileServer() as server, opened(tmp_path) as store:
            server.put("/model.bin", BIG, etag=None, faults=[Fault(cut=MIB)])
            weights = await store.ensure(server.url("/model.bin"))
            assert weights.path.read_bytes() == BIG
            assert [each.range for each in server.gets("/model.bin")] == [None, None]

    asyncio.run(run())


def test_wrong_bytes_are_an_error_and_nothing_of_them_stays(tmp_path: Path) -> None:
    async def run() -> None:
        async with FileServer() as server, opened(tmp_path) as store:
            server.put("/model.bin", BIG, faults=[Fault(wrong=True)])
            source = f"{server.url('/model.bin')}#sha256={sha256(BIG)}"
            with pytest.raises(DigestMismatchError, match=sha256(BIG)):
                await store.ensure(source)
            assert not list((tmp_path / "content").iterdir())
            assert not list((tmp_path / "partial").iterdir())
            assert (await store.ensure(source)).path.read_bytes() == BIG

    asyncio.run(run())


def test_a_silent_server_is_given_up(tmp_path: Path) -> None:
    async def run() -> None:
        async with FileServer() as server, opened(tmp_path, idle_seconds=0.5, attempts=1) as store:
            server.put("/model.bin", BIG, faults=[Fault(cut=MIB, stall=True)])
            with pytest.raises(SourceUnavailableError, match="stopped sending"):
                await store.ensure(server.url("/model.bin"))
            assert (await store.ensure(server.url("/model.bin"))).path.read_bytes() == BIG
            assert server.gets("/model.bin")[-1].range == f"bytes={MIB}-"

    asyncio.run(run())


def test_a_trickle_is_given_up(tmp_path: Path) -> None:
    async def run() -> None:
        async with FileServer() as server, opened(tmp_path, idle_seconds=1, attempts=1, min_bytes_per_second=10 * MIB) as store:
            server.put("/model.bin", BIG, bytes_per_second=MIB // 4)
            with pytest.raises(SourceUnavailableError, match="too slow"):
                await store.ensure(server.url("/model.bin"))

    asyncio.run(run())


@pytest.mark.parametrize(
    ("status", "error"),
    [(404, SourceNotFoundError), (401, AccessDeniedError), (403, AccessDeniedError), (500, SourceUnavailableError)],
)
def test_a_refusal_says_what_it_is(tmp_path: Path, status: int, error: type[Exception]) -> None:
    async def run() -> None:
        async with FileServer() as server, opened(tmp_path, attempts=1) as store:
            server.put("/model.bin", BIG, always=Fault(status=status))
            with pytest.raises(error, match=r"model\.bin"):
                await store.ensure(server.url("/model.bin") + "?secret=hidden")
            with pytest.raises(error) as caught:
                await store.ensure(server.url("/model.bin") + "?secret=hidden")
            assert "hidden" not in str(caught.value)

    asyncio.run(run())


def test_a_busy_server_is_asked_again(tmp_path: Path) -> None:
    async def run() -> None:
        async with FileServer() as server, opened(tmp_path) as store:
            server.put("/model.bin", BIG, faults=[Fault(status=503, headers={"Retry-After": "0"}), Fault(status=429)])
            assert (await store.ensure(server.url("/model.bin"))).path.read_bytes() == BIG

    asyncio.run(run())


def test_all_parts_of_a_split_file_are_fetched(tmp_path: Path) -> None:
    async def run() -> None:
        parts = [gguf(padding=1000 + each) for each in range(3)]
        async with FileServer() as server, opened(tmp_path) as store:
            for number, part in enumerate(parts, 1):
                server.put(f"/d/m-{number:05}-of-00003.gguf", part)
            weights = await store.ensure(server.url("/d/m-00001-of-00003.gguf"))
            assert weights.path.name == "m-00001-of-00003.gguf"
            assert [each.read_bytes() for each in sorted(weights.path.parent.glob("*.gguf"))] == parts
            assert weights.facts is not None
            assert weights.facts.parts == 3
            assert weights.facts.parameters == 3 * 8 * 16

    asyncio.run(run())


def test_two_at_once_are_one_download_and_one_may_leave(tmp_path: Path) -> None:
    async def run() -> None:
        async with FileServer() as server, opened(tmp_path) as store:
            server.put("/model.bin", BIG, bytes_per_second=4 * MIB)
            leaving = asyncio.create_task(store.ensure(server.url("/model.bin")))
            staying = asyncio.create_task(store.ensure(server.url("/model.bin")))
            await eventually(lambda: server.sent("/model.bin") > 0, within=20, what="the download")
            leaving.cancel()
            assert (await staying).path.read_bytes() == BIG
            assert server.sent("/model.bin") == len(BIG)
            with pytest.raises(asyncio.CancelledError):
                await leaving

    asyncio.run(run())


def test_two_sources_with_one_content_share_a_download(tmp_path: Path) -> None:
    async def run() -> None:
        async with FileServer() as server, opened(tmp_path) as store:
            for name in ("/a.bin", "/b.bin"):
                server.put(name, BIG, bytes_per_second=8 * MIB)
            both = await asyncio.gather(
                *(store.ensure(f"{server.url(name)}#sha256={sha256(BIG)}") for name in ("/a.bin", "/b.bin"))
            )
            assert [each.path.name for each in both] == ["a.bin", "b.bin"]
            assert server.sent("/a.bin") + server.sent("/b.bin") == len(BIG)

    asyncio.run(run())


def test_who_waits_for_another_store_sees_how_far_it_is(tmp_path: Path) -> None:
    async def run() -> None:
        seen: list[Progress] = []
        async with FileServer() as server, opened(tmp_path) as first, opened(tmp_path) as second:
            server.put("/model.bin", BIG, bytes_per_second=2 * MIB)
            fetching = asyncio.create_task(first.ensure(server.url("/model.bin")))
            await eventually(lambda: server.sent("/model.bin") > 0, within=20, what="the download")
            weights = await second.ensure(server.url("/model.bin"), progress=seen.append)
            assert await fetching == weights
            assert any(each.phase == "waiting" and 0 < each.bytes_done < len(BIG) for each in seen)
            assert seen[-1].phase == "ready"
            assert server.sent("/model.bin") == len(BIG)

    asyncio.run(run())


def test_cancelling_stops_at_once_and_keeps_what_came(tmp_path: Path) -> None:
    async def run() -> None:
        async with FileServer() as server, opened(tmp_path) as store:
            served = server.put("/model.bin", BIG, faults=[Fault(cut=MIB, stall=True)])
            task = asyncio.create_task(store.ensure(server.url("/model.bin")))
            part = tmp_path / "partial"
            await eventually(lambda: any(each.stat().st_size == MIB for each in part.iterdir()), within=20, what="a part")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(task, 10)
            assert served.faults == []
            # A download that went on in secret would be joined, and be silent for 20 seconds.
            assert (await asyncio.wait_for(store.ensure(server.url("/model.bin")), 10)).path.read_bytes() == BIG
            assert server.gets("/model.bin")[-1].range == f"bytes={MIB}-"

    asyncio.run(run())


def test_the_size_is_known_before_the_download_and_the_facts_too(tmp_path: Path) -> None:
    async def run() -> None:
        model = gguf({"general.architecture": "llama", "llama.block_count": 4}, padding=3 * MIB)
        async with FileServer() as server, opened(tmp_path) as store:
            server.put("/m.gguf", model)
            ahead = await store.preflight(server.url("/m.gguf"))
            assert (ahead.needed, ahead.total, ahead.fits) == (len(model), len(model), True)
            facts = await store.inspect(server.url("/m.gguf"))
            assert (facts.architecture, facts.layers, facts.weights_bytes) == ("llama", 4, len(model))
            assert not list((tmp_path / "partial").iterdir())
            await store.ensure(server.url("/m.gguf"))
            assert (await store.preflight(server.url("/m.gguf"))).needed == 0

    asyncio.run(run())


def test_an_unknown_host_is_named(tmp_path: Path) -> None:
    def resolve(host: str, port: int) -> list[str]:
        raise OSError(-2, "Name or service not known")

    async def run() -> None:
        async with opened(tmp_path, attempts=1, resolve=resolve) as store:
            with pytest.raises(SourceUnavailableError, match=r"weights\.example cannot be resolved"):
                await store.ensure("https://weights.example/m.gguf")

    asyncio.run(run())
