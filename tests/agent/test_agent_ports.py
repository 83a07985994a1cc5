"""Ports for engines."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_agent.errors import AttemptError
from llmgw_agent.process.ports import REST_SECONDS, Ports, default_range, ephemeral_range, is_free, overlaps
from llmgw_testing.clock import FakeClock


def ports(first: int = 10, last: int = 14, taken: tuple[int, ...] = ()) -> tuple[Ports, FakeClock]:
    clock = FakeClock()
    return Ports(first, last, "127.0.0.1", clock, free=lambda _, port: port not in taken, start=first), clock


@given(st.integers(1024, 60_000), st.integers(0, 5_000))
def test_the_default_range_keeps_out_of_the_kernels(low: int, size: int) -> None:
    kernel = (low, low + size)
    assert not overlaps(default_range(kernel), kernel)


def test_rubbish_in_proc_means_the_kernels_default(tmp_path: Path) -> None:
    path = tmp_path / "range"
    assert ephemeral_range(path) == (32_768, 60_999)
    path.write_text("9000\t9999\n")
    assert ephemeral_range(path) == (9000, 9999)


def test_ports_are_taken_in_turn_and_taken_ones_left_out() -> None:
    one, _ = ports(taken=(11,))
    assert [one.take(), one.take(), one.take()] == [10, 12, 13]


def test_a_port_given_back_rests() -> None:
    async def body() -> None:
        one, clock = ports()
        one.give_back(one.take())
        assert [one.take() for _ in range(4)] == [11, 12, 13, 14]
        assert one.take() == 10, "when all others are taken, a resting port is better than none"
        one.give_back(11)
        await clock.advance(REST_SECONDS + 1)
        assert one.take() == 11

    asyncio.run(body())


def test_held_ports_are_not_handed_out_and_none_left_is_said() -> None:
    one, _ = ports(10, 11)
    one.hold(10)
    assert one.take() == 11
    with pytest.raises(AttemptError, match=r"no free port from 10 to 11; widen engines\.ports"):
        one.take()


def test_the_test_is_a_real_bind() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert not is_free("127.0.0.1", port)
    assert is_free("127.0.0.1", port)
    assert not is_free("192.0.2.77", port), "an address that is not ours"
