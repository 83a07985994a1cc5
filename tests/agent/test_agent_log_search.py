"""Finding lines in logs: by time, by what they say, and the last of those."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import aclosing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw_agent.logs.files import parts
from llmgw_agent.logs.grep import Keep, PatternError, matching
from llmgw_agent.logs.tail import LOOK_SECONDS, tail
from llmgw_agent.process.logmon import RotatingFile
from llmgw_testing.clock import FakeClock


class TimedFile(RotatingFile):
    """A log whose time is given."""

    at = 1000.0

    def now(self) -> float:
        return self.at


def read(folder: Path, lines: int = 0, since: float = 0.0, keep: Keep | None = None) -> bytes:
    async def body() -> bytes:
        chunks = tail(folder, lines, follow=False, clock=FakeClock(), since=since, keep=keep)
        return b"".join([chunk async for chunk in chunks])

    return asyncio.run(body())


def written(folder: Path, count: int, *, max_bytes: int = 120, files: int = 4, every: float = 10.0) -> list[bytes]:
    """One line every some seconds from 1000 on; the lines."""
    log = TimedFile(str(folder), max_bytes, files)
    lines = []
    for number in range(count):
        log.at = 1000.0 + number * every
        lines.append(f"line {number:03} {'error' if number % 4 == 0 else 'fine'}\n".encode())
        assert log.write(lines[-1])
    return lines


def test_since_a_time_over_rotated_parts(tmp_path: Path) -> None:
    lines = written(tmp_path, 20)
    kept = len(b"".join(part.read_bytes() for part in parts(tmp_path)).splitlines())
    assert len(parts(tmp_path)) > 2
    for since in range(1000, 1200, 10):
        # The files' own times are of today, so only the notes can tell.
        newer = 20 - (since - 1000) // 10
        assert read(tmp_path, since=float(since)) == b"".join(lines[-min(kept, newer) :]), since
        assert read(tmp_path, since=since + 5.0) == b"".join(lines[20 - min(kept, newer - 1) :]), since


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40)), min_size=1, max_size=40), st.integers(1000, 1080))
def test_never_is_a_line_left_out_that_was_written_since(writes: list[tuple[int, int]], since: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        log = TimedFile(folder, 200, 3)
        owed = b""
        for pause, size in writes:
            log.at += pause
            line = b"x" * (size - 1) + b"\n"
            assert log.write(line)
            if log.at >= since:
                owed += line
        found = read(Path(folder), since=float(since))
        kept = b"".join(part.read_bytes() for part in parts(Path(folder)))
        assert found.endswith(owed) or (owed.endswith(kept) and found == kept)


def test_a_log_without_notes_counts_as_a_whole(tmp_path: Path) -> None:
    import os

    (tmp_path / "engine.log.1").write_bytes(b"old\n")
    os.utime(tmp_path / "engine.log.1", (500, 500))
    (tmp_path / "engine.log").write_bytes(b"new\n")
    assert read(tmp_path, since=1000.0) == b"new\n"
    assert read(tmp_path, since=100.0) == b"old\nnew\n"
    assert read(tmp_path, since=time.time() + 1000) == b""
    (tmp_path / "engine.times").write_bytes(b"garbage\n\n9 x\n100.0 0\n99")
    assert read(tmp_path, since=100.5) == b"old\nnew\n", "a damaged note hides nothing"


def test_lines_that_match_and_the_last_of_them(tmp_path: Path) -> None:
    lines = written(tmp_path, 20, files=9)
    errors = [line for line in lines if b"error" in line]
    assert read(tmp_path, keep=matching("err.r$")) == b"".join(errors)
    assert read(tmp_path, 2, keep=matching("(?i)ERROR")) == b"".join(errors[-2:])
    assert read(tmp_path, 2, since=1000.0, keep=matching("^line 00")) == b"".join(lines[8:10])
    assert read(tmp_path, keep=matching("nowhere")) == b""


def test_a_line_that_is_cut_by_a_rotation_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "engine.log.1").write_bytes(b"one\nhere is the nee")
    (tmp_path / "engine.log").write_bytes(b"dle\nthree\nand the needle without an end")
    assert read(tmp_path, keep=matching("needle")) == b"here is the needle\nand the needle without an end"


@pytest.mark.parametrize(
    ("pattern", "said"),
    [("(a", "unclosed group"), ("(?=a)", "look-around"), ("a{1000}{1000}", "size limit"), ("x" * 501, "501 characters")],
)
def test_patterns_that_cannot_be_used_are_refused_with_the_cause(pattern: str, said: str) -> None:
    with pytest.raises(PatternError, match=said):
        matching(pattern)


def test_a_hostile_pattern_and_line_take_no_time_worth_telling() -> None:
    keep = matching(r"^(a|aa|a.*)+(x+x+)+y$")
    began = time.monotonic()
    assert keep(b"a" * 200_000 + b"\n") == b""
    assert time.monotonic() - began < 5


@given(st.binary(max_size=300))
def test_any_bytes_can_be_looked_through(data: bytes) -> None:
    assert matching("")(data) == data


def test_following_shows_only_what_matches(tmp_path: Path) -> None:
    async def body() -> None:
        clock = FakeClock()
        log = RotatingFile(str(tmp_path), max_bytes=60, files=2)
        log.write(b"bad 1\ngood\nba")
        got: list[bytes] = []

        async def follow() -> None:
            async with aclosing(tail(tmp_path, 0, follow=True, clock=clock, keep=matching("^bad"))) as chunks:
                async for chunk in chunks:
                    got.append(chunk)

        task = asyncio.create_task(follow())

        async def comes(expected: bytes) -> None:
            # The first part is read in a thread, whose end the fake clock does not know of.
            for _ in range(2000):
                await clock.advance(LOOK_SECONDS)
                if b"".join(got) == expected:
                    return
                await asyncio.sleep(0.01)
            raise AssertionError(got)

        await comes(b"bad 1\n")
        log.write(b"d 2\n")
        await comes(b"bad 1\nbad 2\n")
        expected = b"bad 1\nbad 2\n"
        for number in range(3, 20):
            log.write(f"bad {number}\nsome other words\n".encode())
            expected += f"bad {number}\n".encode()
            await comes(expected)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(body())


def test_a_log_stays_open_for_as_long_as_a_thread_reads_it(tmp_path: Path) -> None:
    # Else the thread would read from whatever got the descriptor's number next.
    entered, leave = threading.Event(), threading.Event()

    def keep(lines: bytes) -> bytes:
        entered.set()
        assert leave.wait(30)
        return lines

    async def body() -> None:
        written(tmp_path, 3)
        task = asyncio.create_task(anext(tail(tmp_path, 0, follow=True, clock=FakeClock(), keep=keep)))
        try:
            assert await asyncio.to_thread(entered.wait, 30)
            task.cancel()
            for _ in range(10):
                await asyncio.sleep(0)
            assert not task.done()
        finally:
            leave.set()
            await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()

    asyncio.run(body())
