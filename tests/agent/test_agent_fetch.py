"""Weights on their way to an engine: what is told, what is pinned, and what failure means."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from llmgw_agent.errors import RejectedError
from llmgw_agent.shard.fetch import Reporter, describe, to_fetch
from llmgw_agent.weights import Progress
from llmgw_agent.weights.views import Phase
from llmgw_proto.records import AssignmentRecord
from llmgw_testing.agent_harness import WITHIN, AgentHarness, fake_wish
from llmgw_testing.clock import FakeClock
from llmgw_testing.file_server import Fault, FileServer
from llmgw_testing.wait import eventually
from llmgw_testing.weights import MIB, data, sha256

BIG = data(3 * MIB)
OPEN = {"allow_networks": ["127.0.0.0/8"], "reserve_bytes": 0, "attempts": 1}


def progress(phase: Phase, done: int, total: int | None, *, place: str = "", rate: float = 0, waits_for: str = "") -> Progress:
    return Progress("s", phase, done, total, done, rate, 0, 1, place, waits_for)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            progress("fetching", 1_200_000_000, 4_700_000_000, place="https://hf.example/org/x?..."),
            "fetching 1.2 of 4.7 GB, 85 MB/s, from hf.example",
        ),
        (progress("fetching", 0, 900), "fetching 0 of 900 B, 85 MB/s"),
        (progress("fetching", 12_000_000, None), "fetching 12 MB, 85 MB/s"),
        (progress("resolving", 0, None), "asks what the source consists of"),
        (progress("verifying", 5 * 10**12, 5 * 10**12), "verifies the weights: 5 of 5 TB"),
        (progress("fetching", 5, 10, waits_for="n2"), "waits for node n2, which fetches the same weights"),
        (progress("waiting", 10_000_000, 0), "another process fetches the same weights: 10000000 of 0 B"),
        (progress("waiting", 0, None), "waits for another process that uses the same weights"),
    ],
)
def test_progress_in_words(given: Progress, says: str) -> None:
    assert describe(given, 85e6) == says


def test_progress_is_told_at_each_phase_and_now_and_then() -> None:
    clock, told = FakeClock(), list[str]()
    reporter = Reporter(clock, told.append)
    reporter.hear(progress("resolving", 0, None))
    for step in range(1, 41):
        asyncio.run(clock.advance(0.25))
        reporter.hear(progress("fetching", step * 10**6, 10**8, rate=1))
    assert len(told) == 2 + 4, "10 s of news, four times a second, tell something every two seconds"
    assert told[2] == "fetching 9 of 100 MB, 4 MB/s", "the rate since the last report, not of the last moment"
    reporter.hear(progress("ready", 10**8, 10**8))
    assert len(told) == 6
    assert reporter.fetched == 10**8


def test_only_a_command_may_have_a_source_of_its_own_kind() -> None:
    assert to_fetch(fake_wish(source="my-weights")) is None
    assert to_fetch(fake_wish()) is None
    with pytest.raises(RejectedError, match="is not a repository"):
        to_fetch(fake_wish(source="hf:///"))
    with pytest.raises(RejectedError, match="of no known kind"):
        to_fetch(fake_wish(engine="vllm", source="my-weights"))


def pins(agent: AgentHarness) -> set[str]:
    return {each.name for each in (agent.config.state_dir / "weights/pins").rglob("*") if each.is_file()}


def served(files: FileServer, name: str = "m", *, path: str = "/w.bin", **fields: object) -> AssignmentRecord:
    """A wish whose engine cannot start without the file."""
    program = ["sh", "-c", 'test -f "$1" || exit 9; shift; exec "$@"', "sh", "{model}"]
    wish = fake_wish(name, source=files.url(path))
    return wish.model_copy(update={"command": [*program, *wish.command], **fields})


def test_weights_are_fetched_with_progress_pinned_and_let_go(tmp_path: Path) -> None:
    async def body() -> None:
        async with FileServer() as files, AgentHarness(tmp_path, weights=OPEN) as agent:
            files.put("/w.bin", BIG, bytes_per_second=1.2 * MIB)
            await agent.wish(served(files))

            async def tells() -> bool:
                record = await agent.record("m-1.0")
                return record is not None and record.state == "Fetching" and "of 3.1 MB" in record.reason

            await eventually(tells, within=WITHIN, what="progress", every=0.05)
            await agent.shard("m-1.0", "Ready")
            assert pins(agent)
            await agent.wish(served(files, "n"))
            await agent.shard("n-1.0", "Ready")
            assert len(files.gets("/w.bin")) == 1, "one download for both"
            before = pins(agent)
            await agent.unwish("m-1.0")
            await agent.nothing_left("m-1.0", "m-1")
            assert pins(agent) < before
            await agent.unwish("n-1.0")
            await agent.nothing_left("n-1.0", "n-1")
            assert pins(agent) == set()

    asyncio.run(body())


def test_a_withdrawn_wish_ends_the_download_and_what_came_is_continued(tmp_path: Path) -> None:
    async def body() -> None:
        async with FileServer() as files, AgentHarness(tmp_path, weights=OPEN) as agent:
            content = files.put("/w.bin", BIG, faults=[Fault(cut=2 * MIB, stall=True)])
            await agent.wish(served(files))
            partial = agent.config.state_dir / "weights/partial"

            def kept() -> bool:
                return any(each.stat().st_size > MIB for each in partial.glob("*"))

            await eventually(kept, within=WITHIN, what="the download to be under way")
            await agent.shard("m-1.0", "Fetching")
            await agent.unwish("m-1.0")
            await agent.nothing_left("m-1.0", "m-1")
            assert pins(agent) == set()
            assert content.faults == []
            await agent.wish(served(files, "m", epoch=2))
            await agent.shard("m-1.0", "Ready")
            assert files.gets("/w.bin")[-1].range is not None, "it goes on where it was"

    asyncio.run(body())


def test_what_a_later_try_may_mend_is_tried_again_and_what_not_is_refused(tmp_path: Path) -> None:
    async def body() -> None:
        async with FileServer() as files, AgentHarness(tmp_path, weights=OPEN) as agent:
            content = files.put("/w.bin", BIG, always=Fault(status=503))
            files.put("/wrong.bin", BIG)
            await agent.wish(served(files))
            await agent.wish(served(files, "gone", path="/gone.bin"))
            await agent.wish(served(files, "wrong", path=f"/wrong.bin#sha256={sha256(b'other')}"))
            failed = await agent.shard("m-1.0", "Failed")
            assert "weights: " in failed.reason
            assert "503" in failed.reason
            gone = await agent.shard("gone-1.0", "Rejected")
            assert "/gone.bin" in gone.reason
            wrong = await agent.shard("wrong-1.0", "Rejected")
            assert "/wrong.bin" in wrong.reason
            assert sha256(b"other")[:12] in wrong.reason
            content.always = None
            await agent.shard("m-1.0", "Ready")

    asyncio.run(body())


def test_addresses_inside_are_refused_unless_allowed(tmp_path: Path) -> None:
    async def body() -> None:
        async with FileServer() as files, AgentHarness(tmp_path) as agent:
            files.put("/w.bin", BIG)
            await agent.wish(served(files))
            record = await agent.shard("m-1.0", "Rejected")
            assert "127.0.0.1" in record.reason
            assert "allow_networks" in record.reason
            assert files.seen == []

    asyncio.run(body())


def test_pins_of_what_runs_outlive_the_agent_and_others_do_not(tmp_path: Path) -> None:
    async def body() -> None:
        async with FileServer() as files, AgentHarness(tmp_path, weights=OPEN) as agent:
            files.put("/w.bin", BIG)
            await agent.wish(served(files))
            record = await agent.shard("m-1.0", "Ready")
            held = pins(agent)
            await agent.crash()
            stray = next(each for each in (agent.config.state_dir / "weights/pins").rglob("*") if each.is_file())
            stray.with_name("nobody-1.0").write_bytes(stray.read_bytes())
            await agent.start()
            await eventually(lambda: pins(agent) == held, within=WITHIN, what="the pin of nobody to go")
            assert (await agent.shard("m-1.0", "Ready")).pid == record.pid

    asyncio.run(body())
