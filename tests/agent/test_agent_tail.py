"""Reading a growing, rotated log."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_agent.logs.files import headline_of, pin_first_failure, prune, read_attempt, read_end
from llmgw_agent.logs.tail import LOOK_SECONDS, last_lines, tail
from llmgw_agent.process.logmon import RotatingFile
from llmgw_testing.clock import FakeClock


async def read(folder: Path, lines: int) -> bytes:
    return b"".join([chunk async for chunk in tail(folder, lines, follow=False, clock=FakeClock())])


@given(st.binary(max_size=200), st.integers(1, 20))
def test_last_lines_are_an_end_with_that_many_lines(data: bytes, count: int) -> None:
    found = last_lines(data, count)
    assert data.endswith(found)
    whole = data[:-1].split(b"\n") if data.endswith(b"\n") else data.split(b"\n")
    assert found == b"\n".join(whole[-count:]) + (b"\n" if data.endswith(b"\n") else b"")


def test_the_tail_goes_over_rotated_parts(tmp_path: Path) -> None:
    log = RotatingFile(str(tmp_path), max_bytes=30, files=4)
    lines = [f"line {number}\n".encode() for number in range(9)]
    for line in lines:
        log.write(line)
    assert asyncio.run(read(tmp_path, 7)) == b"".join(lines[-7:])
    assert asyncio.run(read(tmp_path, 500)) == b"".join(lines)
    assert asyncio.run(read(tmp_path, 0)) == (tmp_path / "engine.log").read_bytes()


def test_a_shard_without_a_log_has_an_empty_one(tmp_path: Path) -> None:
    assert asyncio.run(read(tmp_path, 10)) == b""


def test_following_loses_nothing_over_rotations_and_gives_whole_lines(tmp_path: Path) -> None:
    async def body() -> None:
        clock = FakeClock()
        log = RotatingFile(str(tmp_path), max_bytes=60, files=2)
        log.write(b"old\nfirst\nhal")
        got: list[bytes] = []

        async def follow() -> None:
            async with aclosing(tail(tmp_path, 2, follow=True, clock=clock)) as chunks:
                async for chunk in chunks:
                    got.append(chunk)

        task = asyncio.create_task(follow())
        await clock.advance(LOOK_SECONDS)
        assert b"".join(got) == b"first\n"
        log.write(b"f\n")
        await clock.advance(LOOK_SECONDS)
        assert b"".join(got) == b"first\nhalf\n"
        expected = b"".join(got)
        for number in range(30):
            line = f"line number {number}\n".encode()
            log.write(line)
            expected += line
            if number % 2:
                await clock.advance(LOOK_SECONDS)
        await clock.advance(LOOK_SECONDS)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert b"".join(got) == expected
        assert all(chunk.endswith(b"\n") for chunk in got)

    asyncio.run(body())


def test_the_log_of_one_attempt(tmp_path: Path) -> None:
    log = RotatingFile(str(tmp_path), 1000, 2)
    log.write(f"{headline_of('a')} epoch 1\nfrom a\n{headline_of('b')} epoch 1\nfrom b\nmore\n".encode())
    assert read_attempt(tmp_path, "b") == ["from b", "more"]
    assert read_attempt(tmp_path, "b", size=7) == ["b", "more"], "cut off above, what is there is its own"
    assert read_end(tmp_path / "missing", 10) == b""


def test_the_first_failure_is_kept_and_bounded(tmp_path: Path) -> None:
    pin_first_failure(tmp_path, 3, "it broke", ["x" * 100] * 10_000)
    data = (tmp_path / "first-failure.log").read_bytes()
    assert data.startswith(b"[llmgw] first failure of epoch 3: it broke\n")
    assert len(data) < 300_000


def test_logs_of_removed_shards_are_kept_up_to_a_limit(tmp_path: Path) -> None:
    import os

    for number in range(6):
        (tmp_path / f"s{number}").mkdir()
        os.utime(tmp_path / f"s{number}", (number, number))
    prune(tmp_path, living={"s0"}, keep=2)
    assert {path.name for path in tmp_path.iterdir()} == {"s0", "s4", "s5"}
    prune(tmp_path / "missing", set(), 0)


def test_a_log_folder_that_goes_while_old_ones_are_looked_for_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    plain = Path.is_dir

    def then_gone(path: Path) -> bool:
        found = plain(path)
        if path.name == "b":
            path.rmdir()
        return found

    monkeypatch.setattr(Path, "is_dir", then_gone)
    prune(tmp_path, set(), keep=0)
    assert list(tmp_path.iterdir()) == []
