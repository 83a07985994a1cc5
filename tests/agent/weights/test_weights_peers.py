from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from aiohttp import ClientSession, web

from llmgw_agent.weights import Manifest, peer_app
from llmgw_agent.weights.serve import Rate
from llmgw_agent.weights.sources import source_key
from llmgw_base.clock import SystemClock
from llmgw_testing.clock import FakeClock
from llmgw_testing.file_server import Fault, FileServer
from llmgw_testing.hub_server import HubServer
from llmgw_testing.weights import MIB, Known, data, opened, sha256

BIG = data(2 * MIB, seed=21)


@contextlib.asynccontextmanager
async def served(app: web.Application) -> AsyncIterator[str]:
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def allow(request: web.Request) -> bool:
    return request.headers.get("Authorization") == "Bearer t"


def test_a_peer_is_asked_before_the_internet(tmp_path: Path) -> None:
    async def run() -> None:
        async with FileServer() as server, opened(tmp_path / "a") as giver:
            server.put("/m.bin", BIG)
            source = f"{server.url('/m.bin')}#sha256={sha256(BIG)}"
            await giver.ensure(source)
            async with (
                served(peer_app(giver, clock=SystemClock(), authorize=allow)) as url,
                opened(tmp_path / "b", peers=Known(url)) as taker,
            ):
                assert (await taker.ensure(source)).path.read_bytes() == BIG
            assert server.sent("/m.bin") == len(BIG)

    asyncio.run(run())


def test_a_peer_with_wrong_bytes_is_dropped_and_the_next_asked(tmp_path: Path) -> None:
    async def run() -> None:
        async with FileServer() as server, FileServer() as bad:
            server.put("/m.bin", BIG)
            bad.put(f"/blobs/sha256/{sha256(BIG)}", BIG, always=Fault(wrong=True))
            peers = Known(bad.url(""))
            async with opened(tmp_path, peers=peers) as store:
                weights = await store.ensure(f"{server.url('/m.bin')}#sha256={sha256(BIG)}")
            assert weights.path.read_bytes() == BIG
            assert peers.gone == [bad.url("")]

    asyncio.run(run())


def test_a_half_wrong_file_from_a_peer_is_not_blamed_on_the_origin(tmp_path: Path) -> None:
    """The peer sends wrong bytes and breaks off; the origin continues that, and then gets a try of its own."""

    async def run() -> None:
        async with FileServer() as server, FileServer() as bad:
            server.put("/m.bin", BIG)
            bad.put(f"/blobs/sha256/{sha256(BIG)}", BIG, faults=[Fault(wrong=True, cut=MIB)], always=Fault(status=500))
            async with opened(tmp_path, peers=Known(bad.url(""))) as store:
                weights = await store.ensure(f"{server.url('/m.bin')}#sha256={sha256(BIG)}")
            assert weights.path.read_bytes() == BIG
            assert [each.range for each in server.gets("/m.bin")] == [f"bytes={MIB}-", None]

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["dead", "refusing", "empty", "of another size"])
def test_a_useless_peer_is_passed_over(tmp_path: Path, kind: str) -> None:
    async def run() -> None:
        async with FileServer() as server, FileServer() as peer:
            server.put("/m.bin", BIG)
            blob = f"/blobs/sha256/{sha256(BIG)}"
            if kind == "refusing":
                peer.put(blob, BIG, always=Fault(status=403))
            if kind == "of another size":
                peer.put(blob, BIG[:100])
            url = "http://127.0.0.1:9" if kind == "dead" else peer.url("")
            async with opened(tmp_path, peers=Known(url)) as store:
                weights = await store.ensure(f"{server.url('/m.bin')}#sha256={sha256(BIG)}")
            assert weights.path.read_bytes() == BIG
            assert server.sent("/m.bin") == len(BIG)

    asyncio.run(run())


def test_what_a_peer_answers(tmp_path: Path) -> None:
    async def run() -> None:
        async with FileServer() as server, opened(tmp_path) as store, ClientSession() as session:
            server.put("/m.bin", BIG)
            await store.ensure(server.url("/m.bin"))
            async with served(peer_app(store, clock=SystemClock(), authorize=allow)) as url:
                blob = f"{url}/blobs/sha256/{sha256(BIG)}"

                async def get(where: str, **headers: str) -> tuple[int, bytes]:
                    async with session.get(where, headers={"Authorization": "Bearer t", **headers}) as answer:
                        return answer.status, await answer.read()

                assert await get(blob) == (200, BIG)
                assert await get(blob, Range="bytes=100-") == (206, BIG[100:])
                assert await get(blob, Range="bytes=100-199") == (206, BIG[100:200])
                assert (await get(blob, Range=f"bytes={len(BIG)}-"))[0] == 416
                assert (await get(blob, Authorization="Bearer x"))[0] == 403
                for wrong in ("sha256/" + "0" * 64, "sha256/..%2f..%2frecords", "md5/" + "0" * 32, "sha256/x"):
                    assert (await get(f"{url}/blobs/{wrong}"))[0] == 404

    asyncio.run(run())


def test_a_peer_serves_only_so_many_at_once(tmp_path: Path) -> None:
    async def run() -> None:
        async with FileServer() as server, opened(tmp_path) as store, ClientSession() as session:
            server.put("/m.bin", BIG)
            await store.ensure(server.url("/m.bin"))
            app = peer_app(store, clock=SystemClock(), bytes_per_second=100_000, max_streams=1)
            async with served(app) as url:
                blob = f"{url}/blobs/sha256/{sha256(BIG)}"
                async with session.get(blob) as first:
                    assert first.status == 200
                    async with session.get(blob) as second:
                        assert (second.status, second.headers["Retry-After"]) == (503, "2")

    asyncio.run(run())


def test_the_rate_holds_over_all_streams() -> None:
    async def run() -> None:
        clock = FakeClock()
        rate = Rate(1000, clock)
        start = clock.monotonic()
        tasks = [asyncio.create_task(rate.take(500)) for _ in range(20)]
        while not all(each.done() for each in tasks):
            await clock.advance(0.05)
        assert 9.0 <= clock.monotonic() - start <= 10.5

    asyncio.run(run())


def mirrored(store_root: Path, mirror: FileServer, source: str, change: Callable[[Manifest], Manifest] = lambda m: m) -> None:
    """Publishes what a store has, as ``rsync`` of its blobs and manifests to a web server would."""
    for blob in (store_root / "blobs").rglob("*"):
        if blob.is_file():
            mirror.put(f"/{blob.relative_to(store_root)}", blob.read_bytes())
    path = store_root / "manifests" / f"{source_key(source)}.json"
    manifest = change(Manifest.read(path.read_bytes(), "test"))
    mirror.put(f"/manifests/{path.name}", manifest.model_dump_json().encode())


def test_a_mirror_answers_for_a_hub_that_is_away(tmp_path: Path) -> None:
    async def run() -> None:
        async with HubServer() as hub, FileServer() as mirror:
            hub.add(
                "org/m", {"config.json": json.dumps({"num_hidden_layers": 3}).encode(), "model.safetensors": bytes(8) + b"{}"}
            )
            async with opened(tmp_path / "a", hub_endpoint=hub.url) as store:
                first = await store.ensure("hf:org/m")
            mirrored(tmp_path / "a", mirror, "hf:org/m")
            hub.down = True
            async with opened(tmp_path / "b", hub_endpoint=hub.url, mirror=mirror.url(""), allow_networks=[]) as store:
                second = await store.ensure("hf:org/m")
            assert second.digests == first.digests
            assert second.revision == first.revision

    asyncio.run(run())


def test_a_mirror_with_wrong_bytes_or_promises_is_left_for_the_origin(tmp_path: Path) -> None:
    async def run() -> None:
        async with FileServer() as server, FileServer() as mirror:
            server.put("/m.bin", BIG)
            source = f"{server.url('/m.bin')}#sha256={sha256(BIG)}"
            async with opened(tmp_path / "a") as store:
                await store.ensure(source)
            other = data(len(BIG), seed=22)
            lying = f"sha256:{sha256(other)}"
            mirrored(
                tmp_path / "a",
                mirror,
                source,
                lambda m: m.model_copy(update={"files": [m.files[0].model_copy(update={"digest": lying})]}),
            )
            mirror.put(f"/blobs/sha256/{sha256(other)}", other)
            mirror.files[f"/blobs/sha256/{sha256(BIG)}"].always = Fault(wrong=True)
            async with opened(tmp_path / "b", mirror=mirror.url("")) as store:
                assert (await store.ensure(source)).path.read_bytes() == BIG
            mirror.put(f"/manifests/{source_key(source)}.json", b'{"files": 3}')
            async with opened(tmp_path / "c", mirror=mirror.url("")) as store:
                assert (await store.ensure(source)).path.read_bytes() == BIG

    asyncio.run(run())
