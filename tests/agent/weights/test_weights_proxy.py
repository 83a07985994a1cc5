from __future__ import annotations

import asyncio
import contextlib
import ssl
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import pytest

from llmgw_agent.weights import AddressRefusedError, SourceUnavailableError, WeightsSettings
from llmgw_agent.weights.proxy import Proxy
from llmgw_base.config import ConfigError, load
from llmgw_testing.etcd_tls import TestAuthority
from llmgw_testing.file_server import FileServer
from llmgw_testing.weights import data, opened

BIG = data(300_000, seed=61)


class HttpProxy:
    """Sends everything to 127.0.0.1, as a proxy that knows names this node does not. ``seen``: first lines of requests."""

    def __init__(self, password: str | None = None) -> None:
        self.seen: list[str] = []
        self._password = password
        self._copies: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for each in self._copies:
            each.cancel()
        await asyncio.gather(*self._copies, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, _, rest = head.partition("\r\n")
        self.seen.append(first)
        method, target, _ = first.split(" ")
        if self._password is not None and f"proxy-authorization: basic {self._password}" not in head.lower():
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
            writer.close()
            return
        port = int(target.rpartition(":")[2]) if method == "CONNECT" else urlsplit(target).port
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        if method == "CONNECT":
            writer.write(b"HTTP/1.1 200 OK\r\nX: y\r\n\r\n")
        else:
            far_writer.write(f"{method} {urlsplit(target).path} HTTP/1.1\r\n{rest}".encode())
        for pair in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.create_task(self._copy(*pair))
            self._copies.add(task)
            task.add_done_callback(self._copies.discard)

    @staticmethod
    async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while block := await reader.read(1 << 16):
                writer.write(block)
                await writer.drain()
        writer.close()


def unknown(host: str, port: int) -> list[str]:
    if host == "127.0.0.1":
        return [host]
    raise OSError("this node has no DNS for the internet")


def test_http_and_https_through_a_proxy(tmp_path: Path) -> None:
    async def run() -> None:
        authority = TestAuthority(tmp_path)
        files = authority.issue("web")
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(files.cert, files.key)
        # The password is basic authentication of "u:p", in lower case as the head is compared.
        async with HttpProxy("dtpw") as proxy, FileServer() as plain, FileServer(context) as secure:
            url = f"http://u:p@127.0.0.1:{proxy.port}"
            async with opened(tmp_path / "w", proxy=url, resolve=unknown, ca_file=authority.ca) as store:
                for server in (plain, secure):
                    server.put("/m.bin", BIG)
                    assert (await store.ensure(server.url("/m.bin", host="localhost"))).path.read_bytes() == BIG
            assert f"GET http://localhost:{plain.port}/m.bin HTTP/1.1" in proxy.seen
            assert f"CONNECT localhost:{secure.port} HTTP/1.1" in proxy.seen

    asyncio.run(run())


def test_addresses_are_checked_before_the_proxy_is_asked(tmp_path: Path) -> None:
    async def run() -> None:
        async with HttpProxy() as proxy:
            async with opened(tmp_path, proxy=f"http://127.0.0.1:{proxy.port}", allow_networks=[], attempts=1) as store:
                for host in ("169.254.169.254", "localhost", "2130706433"):
                    with pytest.raises(AddressRefusedError):
                        await store.ensure(f"http://{host}/m.bin")
            assert proxy.seen == []

    asyncio.run(run())


def test_a_proxy_that_refuses_is_named(tmp_path: Path) -> None:
    async def run() -> None:
        async with HttpProxy("other") as proxy:
            url = f"http://127.0.0.1:{proxy.port}"
            async with opened(tmp_path, resolve=unknown, proxy=url, attempts=1) as store:
                with pytest.raises(SourceUnavailableError, match=f"127.0.0.1:{proxy.port} refuses the tunnel: 407"):
                    await store.ensure("https://weights.example/m.bin")

    asyncio.run(run())


def test_which_hosts_go_through_it() -> None:
    proxy = Proxy.read("http://proxy.lan", ["mirror.corp", ".lan"])
    assert (proxy.host, proxy.port, proxy.headers) == ("proxy.lan", 3128, ())
    for host, through in (
        ("huggingface.co", True),
        ("mirror.corp", False),
        ("MIRROR.corp.", False),
        ("a.mirror.corp", True),
        ("a.b.lan", False),
        ("lan", True),
    ):
        assert proxy.serves(host) is through


@pytest.mark.parametrize(
    "line", ["proxy: https://proxy:1", "proxy: proxy:1", "allow_networks: [10.0.0.1/8]", "mirror: ftp://x"]
)
def test_settings_that_cannot_be_meant(tmp_path: Path, line: str) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(line)
    with pytest.raises(ConfigError, match=line.partition(":")[0]):
        load(WeightsSettings, path)
