from __future__ import annotations

import asyncio
import functools
import ssl
from pathlib import Path

import pytest
from aiohttp import web

from llmgw_agent.weights import AddressRefusedError, SourceUnavailableError, peer_app
from llmgw_base.clock import SystemClock
from llmgw_base.config import TlsSection
from llmgw_testing.etcd_tls import TestAuthority
from llmgw_testing.file_server import Fault, FileServer
from llmgw_testing.wait import eventually
from llmgw_testing.weights import MIB, Known, data, opened, sha256

BIG = data(2 * MIB, seed=51)


def server_context(files: TlsSection, *, clients: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(files.ca))
    context.load_cert_chain(files.cert, files.key)
    if clients:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(files: TlsSection) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(files.ca))
    context.load_cert_chain(files.cert, files.key)
    return context


def resolve(host: str, port: int) -> list[str]:
    return ["127.0.0.1"]


def test_https_with_the_name_checked_and_the_address_pinned(tmp_path: Path) -> None:
    async def run() -> None:
        authority = TestAuthority(tmp_path)
        context = server_context(authority.issue("web"))
        async with FileServer(context) as server:
            server.put("/m.bin", BIG, faults=[Fault(cut=MIB)])
            async with opened(tmp_path / "w", ca_file=authority.ca, resolve=resolve) as store:
                assert (await store.ensure(server.url("/m.bin", host="localhost"))).path.read_bytes() == BIG
                assert server.sent("/m.bin") == len(BIG)
            async with opened(tmp_path / "x", ca_file=authority.ca, resolve=resolve, attempts=1) as store:
                with pytest.raises(SourceUnavailableError, match="certificate is not accepted"):
                    await store.ensure(server.url("/m.bin", host="other.example"))
            async with opened(tmp_path / "y", resolve=resolve, attempts=1) as store:
                with pytest.raises(SourceUnavailableError, match=r"weights\.ca_file"):
                    await store.ensure(server.url("/m.bin", host="localhost"))

    asyncio.run(run())


def test_cancelling_over_tls_keeps_only_what_was_decrypted(tmp_path: Path) -> None:
    async def run() -> None:
        authority = TestAuthority(tmp_path)
        async with FileServer(server_context(authority.issue("web"))) as server:
            served = server.put("/m.bin", BIG, bytes_per_second=MIB)
            source = server.url("/m.bin", host="localhost")
            async with opened(tmp_path / "w", ca_file=authority.ca) as store:
                for _ in range(3):
                    task = asyncio.create_task(store.ensure(source))
                    more = functools.partial(server.sent_more_than, "/m.bin", server.sent("/m.bin"))
                    await eventually(more, within=20, what="more of the file")
                    task.cancel()
                    await asyncio.wait({task})
                served.bytes_per_second = None
                assert (await store.ensure(source)).path.read_bytes() == BIG

    asyncio.run(run())


@pytest.mark.parametrize("promised", [True, False])
def test_a_redirect_from_https_to_http_needs_a_digest(tmp_path: Path, promised: bool) -> None:
    async def run() -> None:
        authority = TestAuthority(tmp_path)
        async with FileServer(server_context(authority.issue("web"))) as server, FileServer() as plain:
            server.put("/m.bin", BIG, redirect=plain.url("/m.bin"))
            plain.put("/m.bin", BIG)
            async with opened(tmp_path / "w", ca_file=authority.ca) as store:
                source = server.url("/m.bin")
                if promised:
                    assert (await store.ensure(f"{source}#sha256={sha256(BIG)}")).path.read_bytes() == BIG
                else:
                    with pytest.raises(AddressRefusedError, match="from https to http"):
                        await store.ensure(source)

    asyncio.run(run())


@pytest.mark.parametrize("known", [True, False])
def test_peers_know_each_other_by_certificate(tmp_path: Path, known: bool) -> None:
    async def run() -> None:
        cluster, stranger = TestAuthority(tmp_path), TestAuthority(tmp_path, "stranger")
        mine = client_context(cluster.issue("node-b"))
        if not known:
            mine = client_context(stranger.issue("node-c"))
            mine.load_verify_locations(cluster.ca)
        async with FileServer() as server, opened(tmp_path / "a") as giver:
            server.put("/m.bin", BIG)
            source = f"{server.url('/m.bin')}#sha256={sha256(BIG)}"
            await giver.ensure(source)
            runner = web.AppRunner(peer_app(giver, clock=SystemClock()), access_log=None, shutdown_timeout=0.1)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=server_context(cluster.issue("node-a"), clients=True))
            await site.start()
            url = f"https://127.0.0.1:{runner.addresses[0][1]}"

            peers = Known(url, tls=mine)
            async with opened(tmp_path / "b", peers=peers) as taker:
                assert (await taker.ensure(source)).path.read_bytes() == BIG
            await runner.cleanup()
            assert peers.gone == []
            assert server.sent("/m.bin") == (1 if known else 2) * len(BIG)

    asyncio.run(run())
