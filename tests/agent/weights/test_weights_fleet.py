"""Agents that give weights to each other: the source is asked once, and whatever happens to a giver, the others go on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from llmgw_agent.config import AgentConfig
from llmgw_agent.weights.hashing import Follower
from llmgw_agent.weights.receive import Meter
from llmgw_base.clock import SystemClock
from llmgw_base.config import ConfigError
from llmgw_proto.digests import Digest
from llmgw_testing.etcd_tls import TestAuthority
from llmgw_testing.file_server import Fault, FileServer
from llmgw_testing.hub_server import HubServer
from llmgw_testing.memserver import MemoryServer
from llmgw_testing.wait import eventually
from llmgw_testing.weights import MIB, data, sha256
from llmgw_testing.weights_fleet import SharingNode, told

BIG = data(4 * MIB, seed=61)
CONFIG = json.dumps({"num_hidden_layers": 3}).encode()


@contextlib.asynccontextmanager
async def fleet(root: Path, *names: str, **changes: Any) -> AsyncIterator[list[SharingNode]]:
    server = MemoryServer(SystemClock())
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(SharingNode(root, name, server, **changes)) for name in names]


@contextlib.asynccontextmanager
async def hub_with(**files: bytes) -> AsyncIterator[HubServer]:
    async with HubServer() as hub:
        hub.add("org/m", {"config.json": CONFIG, **{name.replace("_", "."): each for name, each in files.items()}})
        yield hub


def content_gets(hub: HubServer, content: bytes) -> int:
    return len(hub.content.gets(hub.content_path(content)))


def test_many_that_want_the_same_at_once_ask_the_hub_once(tmp_path: Path) -> None:
    other = data(3 * MIB, seed=62)

    async def run() -> None:
        async with hub_with(a_safetensors=BIG, b_safetensors=other) as hub:
            hub.content.files[hub.content_path(BIG)].bytes_per_second = 4 * MIB
            async with fleet(tmp_path, "n1", "n2", "n3", hub_endpoint=hub.url) as nodes:
                found = await asyncio.gather(*(node.weights.ensure("hf:org/m") for node in nodes))
                for each in found:
                    assert (each.path / "a.safetensors").read_bytes() == BIG
                    assert (each.path / "b.safetensors").read_bytes() == other
                assert (content_gets(hub, BIG), content_gets(hub, other)) == (1, 1)
                small = [each for each in hub.seen if each.path.endswith("config.json") and each.method == "GET"]
                assert len(small) == 1, "small files too"
                size = len(BIG) + len(other) + len(CONFIG)
                traffic = [node.weights.traffic for node in nodes]
                assert sum(each.fetched["source"] for each in traffic) == size
                assert sum(each.fetched["peer"] for each in traffic) == 2 * size == sum(each.given for each in traffic)

                async def all_told() -> bool:
                    keys = await told(nodes[0].etcd)
                    return len(keys) == 3 and set(keys.values()) == {"here"} and len({content for content, _ in keys}) == 1

                await eventually(all_told, within=30, what="one key a node")

    asyncio.run(run())


def test_what_a_node_has_is_known_after_its_restart_and_not_after_its_removal(tmp_path: Path) -> None:
    async def run() -> None:
        server = MemoryServer(SystemClock())
        async with FileServer() as files:
            files.put("/m.bin", BIG)
            source = f"{files.url('/m.bin')}#sha256={sha256(BIG)}"
            async with SharingNode(tmp_path, "n1", server) as first:
                await first.weights.ensure(source)
            async with SharingNode(tmp_path, "n1", server) as again, SharingNode(tmp_path, "n2", server) as second:
                await eventually(lambda: again.publisher.pending == 0, within=30, what="the key")
                files.files.clear()
                assert (await second.weights.ensure(source)).path.read_bytes() == BIG, "from the peer, as the source is gone"

                async def both() -> bool:
                    return len(await told(second.etcd)) == 2

                await eventually(both, within=30, what="both keys")
                await again.weights.remove(source)

                async def one() -> bool:
                    return [node for _, node in await told(second.etcd)] == ["n2"]

                await eventually(one, within=30, what="the key to go")

    asyncio.run(run())


def test_a_giver_that_dies_in_the_middle_costs_only_the_rest(tmp_path: Path) -> None:
    async def run() -> None:
        async with FileServer() as files, fleet(tmp_path, "n1", "n2", peers={"bytes_per_second": "1MiB"}) as (giver, taker):
            files.put("/m.bin", BIG)
            source = f"{files.url('/m.bin')}#sha256={sha256(BIG)}"
            await giver.weights.ensure(source)
            await eventually(lambda: giver.publisher.pending == 0, within=30, what="the key")
            task = asyncio.create_task(taker.weights.ensure(source))
            part = taker.root / "weights/partial" / f"sha256-{sha256(BIG)}"
            await eventually(lambda: part.exists() and part.stat().st_size > MIB, within=30, what="a part from the peer")
            assert len(files.gets("/m.bin")) == 1
            await giver.kill()
            assert (await task).path.read_bytes() == BIG
            rest = files.gets("/m.bin")[1]
            assert rest.range is not None
            assert int(rest.range.removeprefix("bytes=").removesuffix("-")) >= MIB, "what the peer gave is not fetched again"

    asyncio.run(run())


def test_when_the_one_who_asks_the_source_dies_another_one_asks(tmp_path: Path) -> None:
    async def run() -> None:
        async with FileServer() as files, fleet(tmp_path, "n1", "n2", "n3") as nodes:
            served = files.put("/m.bin", BIG, bytes_per_second=MIB / 8)
            source = f"{files.url('/m.bin')}#sha256={sha256(BIG)}"
            first = asyncio.create_task(nodes[0].weights.ensure(source))
            await eventually(lambda: files.sent("/m.bin") > 0, within=30, what="the first to fetch")
            waits: list[str] = []
            others = [
                asyncio.create_task(node.weights.ensure(source, progress=lambda each: waits.append(each.waits_for)))
                for node in nodes[1:]
            ]
            await eventually(lambda: waits.count("n1") >= 2, within=30, what="the others to wait")
            await nodes[0].kill()
            served.bytes_per_second = None
            first.cancel()
            await asyncio.wait({first})
            for each in await asyncio.gather(*others):
                assert each.path.read_bytes() == BIG
            assert len(files.gets("/m.bin")) == 2

    asyncio.run(run())


def test_nobody_waits_for_one_who_gets_no_further(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with FileServer() as files, fleet(tmp_path, "n1", "n2", peers={"wait_seconds": 2}) as (stuck, other):
            files.put("/m.bin", BIG, faults=[Fault(cut=MIB, stall=True)])
            source = f"{files.url('/m.bin')}#sha256={sha256(BIG)}"
            task = asyncio.create_task(stuck.weights.ensure(source))
            await eventually(lambda: files.sent("/m.bin") >= MIB, within=30, what="the first to be stuck")
            assert (await other.weights.ensure(source)).path.read_bytes() == BIG
            task.cancel()
            await asyncio.wait({task})

    with caplog.at_level(logging.WARNING, logger="llmgw_agent.weights"):
        asyncio.run(run())
    assert "a peer that fetches gets no further; it is not waited for" in caplog.text


def test_a_peer_with_wrong_bytes_is_left_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with FileServer() as files, fleet(tmp_path, "n1", "n2", "n3") as (bad, good, taker):
            files.put("/m.bin", BIG)
            source = f"{files.url('/m.bin')}#sha256={sha256(BIG)}"
            for node in (bad, good):
                await node.weights.ensure(source)
            await eventually(lambda: bad.publisher.pending + good.publisher.pending == 0, within=30, what="the keys")
            asked = len(files.gets("/m.bin"))
            blob = bad.weights.blob_path(Digest.parse(f"sha256:{sha256(BIG)}"))
            blob.chmod(0o644)
            blob.write_bytes(BIG[:-1] + bytes([BIG[-1] ^ 1]))
            for number in range(3):  # whichever of the two is asked first
                await taker.weights.ensure(source)
                assert (await taker.weights.ensure(source)).path.read_bytes() == BIG
                if number < 2:
                    await taker.weights.remove(source)
            assert len(files.gets("/m.bin")) == asked, "the other peer has the right ones"
            await good.kill()
            await taker.weights.remove(source)
            assert (await taker.weights.ensure(source)).path.read_bytes() == BIG

    with caplog.at_level(logging.WARNING, logger="llmgw_agent.weights"):
        asyncio.run(run())
    told_of = [each for each in caplog.records if each.getMessage().startswith("a peer gave wrong bytes")]
    assert len(told_of) == 1, "not asked again soon"
    assert "is not what was promised" in str(vars(told_of[0]))
    assert "n1" in str(vars(told_of[0]))


def test_a_giver_bounds_rate_and_streams_and_the_source_is_not_asked_for_that(tmp_path: Path) -> None:
    async def run() -> None:
        limits = {"bytes_per_second": "4MiB", "max_streams": 1}
        async with FileServer() as files, fleet(tmp_path, "n1", "n2", "n3", peers=limits) as (giver, *takers):
            files.put("/m.bin", BIG)
            source = f"{files.url('/m.bin')}#sha256={sha256(BIG)}"
            await giver.weights.ensure(source)
            await eventually(lambda: giver.publisher.pending == 0, within=30, what="the key")
            began = time.monotonic()
            for each in await asyncio.gather(*(node.weights.ensure(source) for node in takers)):
                assert each.path.read_bytes() == BIG
            assert time.monotonic() - began > 1.0, "4 MiB at 4 MiB/s, and a second one at a time"
            assert len(files.gets("/m.bin")) == 1

    asyncio.run(run())


def test_who_only_verifies_what_it_has_gets_on(tmp_path: Path) -> None:
    """A part of hundreds of gigabytes takes minutes to hash, in which nothing is fetched."""
    (tmp_path / "part").write_bytes(BIG)
    meter = Meter(fetched=5)
    with (tmp_path / "part").open("rb") as file:
        for times in (1, 2):
            follower = Follower(file.fileno(), "sha256", len(BIG))
            meter.follow(follower)
            follower.advance(len(BIG))
            follower.finish()
            assert meter.work == 5 + times * len(BIG)
            meter.follow(None)
            assert meter.work == 5 + times * len(BIG)


def test_without_a_digest_nobody_is_asked_or_told(tmp_path: Path) -> None:
    async def run() -> None:
        async with FileServer() as files, fleet(tmp_path, "n1", "n2") as nodes:
            files.put("/m.bin", BIG)
            for node in nodes:
                await node.weights.ensure(files.url("/m.bin"))
            assert len(files.gets("/m.bin")) == 2

            async def here() -> bool:
                return set((await told(nodes[0].etcd)).values()) == {"here"}

            await eventually(here, within=30, what="what is here now, whose digest is known by now")

    asyncio.run(run())


def test_with_etcd_away_the_source_is_asked(tmp_path: Path) -> None:
    async def run() -> None:
        async with FileServer() as files, fleet(tmp_path, "n1", "n2") as (giver, taker):
            files.put("/m.bin", BIG)
            source = f"{files.url('/m.bin')}#sha256={sha256(BIG)}"
            await giver.weights.ensure(source)
            taker.etcd.down()
            assert (await taker.weights.ensure(source)).path.read_bytes() == BIG
            assert len(files.gets("/m.bin")) == 2

    asyncio.run(run())


def test_strangers_get_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        async with FileServer() as files, fleet(tmp_path, "n1", "n2") as (giver, taker):
            files.put("/m.bin", BIG)
            source = f"{files.url('/m.bin')}#sha256={sha256(BIG)}"
            await giver.weights.ensure(source)
            await eventually(lambda: giver.publisher.pending == 0, within=30, what="the key")
            taker.shared.join(taker.publisher, "00" * 32)  # of another cluster
            assert (await taker.weights.ensure(source)).path.read_bytes() == BIG
            assert len(files.gets("/m.bin")) == 2, "the peer gave nothing"

    asyncio.run(run())


def test_over_tls_with_the_agents_own_certificates(tmp_path: Path) -> None:
    async def run() -> None:
        (tmp_path / "pki").mkdir()
        authority = TestAuthority(tmp_path / "pki")
        server = MemoryServer(SystemClock())
        tls = [{"tls": authority.issue(name).model_dump(mode="json")} for name in ("n1", "n2")]
        async with (
            FileServer() as files,
            SharingNode(tmp_path, "n1", server, config=tls[0]) as giver,
            SharingNode(tmp_path, "n2", server, config=tls[1]) as taker,
        ):
            files.put("/m.bin", BIG)
            source = f"{files.url('/m.bin')}#sha256={sha256(BIG)}"
            await giver.weights.ensure(source)
            await eventually(lambda: giver.publisher.pending == 0, within=30, what="the key")
            await taker.weights.ensure(source)
            assert len(files.gets("/m.bin")) == 1

    asyncio.run(run())


def test_a_listener_that_was_asked_for_and_cannot_be_had_is_said(tmp_path: Path) -> None:
    async def run() -> None:
        server = MemoryServer(SystemClock())
        with pytest.raises(ConfigError, match=r"weights\.peers\.listen: cannot listen on 192\.0\.2\.1:7099"):
            async with SharingNode(tmp_path, "n1", server, peers={"listen": "192.0.2.1:7099"}, config={"insecure": True}):
                pass
        # Nobody asked for it: this node only takes.
        async with SharingNode(
            tmp_path, "n1", server, config={"node": {"name": "n1", "address": "192.0.2.1"}, "insecure": True}
        ):
            pass

    asyncio.run(run())


def test_plain_text_to_others_must_be_meant() -> None:
    with pytest.raises(ConfigError, match=r"weights\.peers\.listen: .* plaintext"):
        AgentConfig.model_validate({"weights": {"peers": {"listen": "0.0.0.0:7099"}}})
