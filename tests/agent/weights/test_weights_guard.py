from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_agent.weights import AddressRefusedError
from llmgw_agent.weights.addresses import refusal
from llmgw_agent.weights.guard import Guard
from llmgw_testing.file_server import FileServer
from llmgw_testing.hub_server import HubServer
from llmgw_testing.steady import steady
from llmgw_testing.weights import data, opened, sha256

MODEL = data(5000)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.8.9.1",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "169.254.1.1",
        "100.64.0.1",
        "100.100.100.200",
        "168.63.129.16",
        "0.0.0.0",
        "0.1.2.3",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1",
        "fe80::1%eth0",
        "fc00::1",
        "fd00:ec2::254",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "::127.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "2002:7f00:1::",
        "2001:0:0:0:0:0:80ff:fffe",
    ],
)
def test_addresses_inside_are_refused(address: str) -> None:
    assert refusal(address, []) is not None


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "8.8.8.8", "172.32.0.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
)
def test_public_addresses_are_not(address: str) -> None:
    assert refusal(address, []) is None


def test_what_the_settings_allow() -> None:
    def allowed(address: str, *networks: str) -> bool:
        guard = Guard(networks, resolve=lambda _host, _port: [address])
        try:
            return guard.addresses("h", 80) == [address]
        except AddressRefusedError:
            return False

    assert allowed("10.1.2.3", "10.0.0.0/8")
    assert allowed("::ffff:10.1.2.3", "10.0.0.0/8")
    assert not allowed("10.1.2.3", "10.2.0.0/16")
    assert not allowed("169.254.169.254", "0.0.0.0/0"), "a wide network does not mean the metadata service"
    assert allowed("169.254.169.254", "169.254.169.254/32")
    assert allowed("169.254.3.3", "169.254.0.0/16")
    assert not allowed("::ffff:127.0.0.1", "10.0.0.0/8")


@steady
@given(st.ip_addresses(v=4))
def test_wrapping_an_address_in_ipv6_changes_nothing(address: object) -> None:
    plain = refusal(str(address), []) is None
    assert (refusal(f"::ffff:{address}", []) is None) == plain


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "[::1]", "[::ffff:127.0.0.1]"]
)
def test_every_spelling_of_loopback_is_refused(tmp_path: Path, host: str) -> None:
    async def run() -> None:
        async with FileServer() as server, opened(tmp_path, allow_networks=[]) as store:
            server.put("/m.bin", MODEL)
            with pytest.raises(AddressRefusedError, match=r"allow_networks"):
                await store.ensure(f"http://{host}:{server.port}/m.bin")
            assert server.seen == []

    asyncio.run(run())


@pytest.mark.parametrize(
    "target", ["http://169.254.169.254/latest/meta-data", "http://10.0.0.7/x", "http://[::ffff:192.168.0.1]/x"]
)
def test_a_redirect_inside_is_refused(tmp_path: Path, target: str) -> None:
    async def run() -> None:
        async with FileServer() as server, opened(tmp_path) as store:
            server.put("/m.bin", MODEL, redirect=target)
            with pytest.raises(AddressRefusedError, match="which is"):
                await store.ensure(server.url("/m.bin"))

    asyncio.run(run())


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://198.51.100.7/x", "gopher://x/"])
def test_a_redirect_to_another_scheme_is_refused(tmp_path: Path, target: str) -> None:
    async def run() -> None:
        async with FileServer() as server, opened(tmp_path) as store:
            server.put("/m.bin", MODEL, redirect=target)
            with pytest.raises(AddressRefusedError, match="neither http nor https"):
                await store.ensure(server.url("/m.bin"))

    asyncio.run(run())


def test_a_name_that_changes_its_meaning_is_checked_each_time(tmp_path: Path) -> None:
    """The first answers are allowed, a later one leads inside: each connection goes where its own check looked."""
    answers = itertools.chain(["127.0.0.1"], itertools.repeat("127.0.0.2"))

    async def run() -> None:
        async with FileServer() as server:
            server.put("/m.bin", MODEL)
            async with opened(tmp_path, allow_networks=["127.0.0.1/32"], resolve=lambda _host, _port: [next(answers)]) as store:
                with pytest.raises(AddressRefusedError, match=r"127\.0\.0\.2"):
                    await store.ensure(server.url("/m.bin", host="rebinding.example"))
            assert [each.method for each in server.seen] == ["HEAD"]

    asyncio.run(run())


def test_the_checked_address_is_the_one_connected_to(tmp_path: Path) -> None:
    """A name is resolved once for each connection; a second look-up, which could differ, does not happen."""
    asked: list[str] = []

    def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"]

    async def run() -> None:
        async with FileServer() as server:
            server.put("/m.bin", MODEL)
            async with opened(tmp_path, resolve=resolve) as store:
                await store.ensure(server.url("/m.bin", host="no-such-name.invalid"))
            assert len(asked) == len(server.seen)

    asyncio.run(run())


def test_one_bad_address_among_good_ones_is_refused() -> None:
    with pytest.raises(AddressRefusedError, match="private"):
        Guard([], resolve=lambda _host, _port: ["8.8.8.8", "10.0.0.1"]).addresses("h", 443)


def test_a_hub_may_be_inside_but_not_lead_further(tmp_path: Path) -> None:
    async def run() -> None:
        async with HubServer() as hub:
            hub.add("org/m", {"m.gguf": MODEL})
            async with opened(tmp_path, allow_networks=[], hub_endpoint=hub.url) as store:
                assert (await store.preflight("hf:org/m")).total == len(MODEL)
                with pytest.raises(AddressRefusedError, match="loopback"):
                    await store.ensure("hf:org/m")
            assert hub.content.seen == []

    asyncio.run(run())


def test_credentials_stay_where_they_belong(tmp_path: Path) -> None:
    async def run() -> None:
        async with FileServer() as server, FileServer() as other, opened(tmp_path) as store:
            server.put("/m.bin", MODEL, redirect=other.url("/m.bin"))
            other.put("/m.bin", MODEL)
            source = server.url("/m.bin").replace("http://", "http://user:pass@") + f"#sha256={sha256(MODEL)}"
            weights = await store.ensure(source)
            assert {each.authorization for each in server.seen} == {"Basic dXNlcjpwYXNz"}
            assert {each.authorization for each in other.seen} == {None}
            assert "pass" not in weights.source

    asyncio.run(run())
