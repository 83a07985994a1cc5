"""The log writer: bounded disk, an engine that is never held up, and output that outlives the agent."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_agent.errors import AttemptError
from llmgw_agent.logs.files import parts, read_end
from llmgw_agent.process import output as output_module
from llmgw_agent.process.end import send_signal
from llmgw_agent.process.identity import Identity, Owner, boot_id, is_running
from llmgw_agent.process.isolation import InGroups, Isolation, WriterOrder
from llmgw_agent.process.logmon import Budget, RotatingFile
from llmgw_agent.process.output import Output
from llmgw_agent.process.scan import find_logmons
from llmgw_base.clock import SystemClock
from llmgw_testing.wait import eventually

CAT = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"


def output(
    folder: Path, node: str, attempt: str = "a1", max_bytes: int = 1000, files: int = 3, isolation: Isolation | None = None
) -> Output:
    return Output(folder, Owner("c", node), attempt, boot_id(), max_bytes=max_bytes, files=files, isolation=isolation)


def start_engine(fd: int) -> subprocess.Popen[bytes]:
    """Writes each line that it is given to the log; takes the descriptor over."""
    try:
        return subprocess.Popen([sys.executable, "-u", "-c", CAT], stdin=subprocess.PIPE, stdout=fd)
    finally:
        os.close(fd)


def pipes(folder: Path) -> list[Path]:
    return list(folder.glob("*.pipe"))


def node() -> str:
    return f"n-{uuid.uuid4().hex[:8]}"


def test_files_rotate_and_the_oldest_goes(tmp_path: Path) -> None:
    log = RotatingFile(str(tmp_path), max_bytes=100, files=3)
    for number in range(40):
        assert log.write(f"line {number:03}\n".encode())
    files = parts(tmp_path)
    assert [path.name for path in files] == ["engine.log.2", "engine.log.1", "engine.log"]
    assert all(path.stat().st_size <= 100 for path in files)
    assert read_end(tmp_path, 10**6).decode().splitlines()[-1] == "line 039"


@given(st.lists(st.binary(min_size=1, max_size=60), max_size=60), st.integers(1, 4))
def test_what_is_kept_is_an_end_of_what_was_written(chunks: list[bytes], files: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        log = RotatingFile(folder, max_bytes=100, files=files)
        for chunk in chunks:
            assert log.write(chunk)
        kept = read_end(Path(folder), 10**6)
        assert b"".join(chunks).endswith(kept)
        assert sum(path.stat().st_size for path in parts(Path(folder))) <= files * 100
        assert len(parts(Path(folder))) <= files
        assert len(list(Path(folder).iterdir())) == 2 * len(parts(Path(folder))), (
            "each part has its times, and nothing else is left"
        )


def test_a_missing_folder_is_no_error_and_writing_goes_on_when_it_is_back(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    log = RotatingFile(str(folder), 100, 2)
    assert not log.write(b"lost")
    folder.mkdir()
    assert log.write(b"kept")
    assert (folder / "engine.log").read_bytes() == b"kept"


def test_the_budget_allows_bursts_and_bounds_the_rate() -> None:
    budget = Budget(rate=10, burst=100, now=0)
    assert budget.take(100, 0)
    assert not budget.take(1, 0)
    assert budget.take(50, 5)
    assert not budget.take(1, 5)
    assert budget.take(100, 1000)
    assert not budget.take(100, 1001)


def test_a_flood_is_bounded_and_an_engine_is_not_held_up(tmp_path: Path) -> None:
    async def body() -> None:
        own, clock = node(), SystemClock()
        one = output(tmp_path / "logs", own, max_bytes=200_000, files=3)
        fd = await one.open()
        flood = ["sh", "-c", "yes flood | head -c 60000000; echo the end"]
        done = await asyncio.to_thread(subprocess.run, flood, stdout=fd, stdin=subprocess.DEVNULL, timeout=60, check=True)
        os.close(fd)
        assert done.returncode == 0, "60 MB went through in time"
        await one.finish(clock, limit=30)
        assert sum(path.stat().st_size for path in (tmp_path / "logs").iterdir()) < 700_000
        assert not find_logmons(own)

    asyncio.run(body())


def test_the_writer_may_die_and_is_replaced_while_the_engine_goes_on(tmp_path: Path) -> None:
    async def body() -> None:
        own, clock = node(), SystemClock()
        one = output(tmp_path, own)
        fd = await one.open()
        engine = start_engine(fd)
        keeper = asyncio.create_task(one.keep())
        try:
            await say(engine, b"before\n", tmp_path)
            first = await eventually(lambda: find_logmons(own).get("a1"), within=20, what="the writer")
            assert first is not None
            send_signal(first, signal.SIGKILL)
            # A line that comes while it dies may die with it.
            await eventually(lambda: not is_running(first, boot_id()), within=20, what="the writer to be dead")
            await say(engine, b"after\n", tmp_path)
            assert find_logmons(own)["a1"] != first
            assert engine.poll() is None
        finally:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
            engine.communicate()
        await one.finish(clock)
        assert not pipes(tmp_path)

    asyncio.run(body())


def test_another_life_of_the_agent_takes_over_with_and_without_a_writer(tmp_path: Path) -> None:
    async def body() -> None:
        own, clock = node(), SystemClock()
        one = output(tmp_path, own)
        fd = await one.open()
        engine = start_engine(fd)
        await say(engine, b"first\n", tmp_path)
        one.release()
        writer = find_logmons(own)["a1"]

        second = output(tmp_path, own)
        await second.adopt(writer)
        await say(engine, b"second\n", tmp_path)
        assert find_logmons(own) == {"a1": writer}
        second.release()

        send_signal(writer, signal.SIGKILL)
        await eventually(lambda: not find_logmons(own), within=20, what="the writer to end")
        third = output(tmp_path, own)
        await third.adopt(None)
        await say(engine, b"third\n", tmp_path)
        engine.communicate()
        await third.finish(clock)
        assert read_end(tmp_path, 1000) == b"first\nsecond\nthird\n"

    asyncio.run(body())


def test_a_pipe_that_nobody_holds_ends_its_writer(tmp_path: Path) -> None:
    async def body() -> None:
        own = node()
        one = output(tmp_path, own)
        os.close(await one.open())
        await eventually(lambda: not find_logmons(own) and not pipes(tmp_path), within=20, what="writer and pipe to go")
        one.release()

    asyncio.run(body())


async def say(engine: subprocess.Popen[bytes], line: bytes, folder: Path) -> None:
    assert engine.stdin is not None
    engine.stdin.write(line)
    engine.stdin.flush()
    await eventually(lambda: read_end(folder, 1000).endswith(line), within=20, what=f"{line!r} in the log")


class Stubborn(InGroups):
    """Cannot start a writer for a while."""

    def __init__(self) -> None:
        self.refusals = 0
        self.refused = asyncio.Event()

    async def start_writer(self, order: WriterOrder) -> Identity:
        if self.refusals:
            self.refusals -= 1
            self.refused.set()
            raise AttemptError("no memory for another process")
        return await super().start_writer(order)


def test_a_writer_that_cannot_be_replaced_at_once_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_module, "WRITER_PAUSE", 0.01)

    async def body() -> None:
        own, clock, way = node(), SystemClock(), Stubborn()
        one = output(tmp_path, own, isolation=way)
        fd = await one.open()
        engine = start_engine(fd)
        one.release()
        await eventually(lambda: find_logmons(own).get("a1"), within=20, what="the writer")
        send_signal(find_logmons(own)["a1"], signal.SIGKILL)
        await eventually(lambda: not find_logmons(own), within=20, what="the writer to end")

        # The next life of the agent cannot start one either: the engine is taken over all the same.
        second = output(tmp_path, own, isolation=way)
        way.refusals = 3
        await second.adopt(None)
        assert way.refused.is_set()
        keeper = asyncio.create_task(second.keep())
        try:
            await say(engine, b"after\n", tmp_path)
        finally:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
            engine.communicate()
        await second.finish(clock)
        assert not pipes(tmp_path)

    asyncio.run(body())
