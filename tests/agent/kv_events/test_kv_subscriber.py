from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator

import pytest

from llmgw_agent.kv_events import Batch, BlockRemoved, BlockStored, Delivery, Lost, Restarted, Subscriber
from llmgw_testing.kv_publisher import KvPublisher
from llmgw_testing.wait import eventually

STORED = {"type": "BlockStored", "block_hashes": [1, 2], "token_ids": [1, 2, 3, 4], "block_size": 2}


@contextlib.asynccontextmanager
async def running(subscriber: Subscriber, got: list[Delivery]) -> AsyncIterator[None]:
    task = asyncio.create_task(subscriber.run(got.append))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def numbers(got: list[Delivery]) -> list[object]:
    return [each.seq if isinstance(each, Batch) else each for each in got]


async def until(got: list[Delivery], *expected: object) -> None:
    await eventually(lambda: numbers(got) == list(expected), within=20, what=f"{expected}")


def has(got: list[Delivery], seq: int) -> bool:
    return seq in numbers(got)


async def subscribed(engine: KvPublisher, got: list[Delivery]) -> int:
    """Publishes until two in a row arrive: a ZMQ subscription takes a moment, and one may come by replay. The next number."""
    in_a_row = 0
    for _ in range(100):
        seq = await engine.publish(STORED)
        try:
            await eventually(functools.partial(has, got, seq), within=0.3, what="a batch")
        except AssertionError:
            in_a_row = 0
        else:
            in_a_row += 1
        if in_a_row == 2:
            return seq + 1
    raise AssertionError("the subscription never came to be")


@pytest.mark.parametrize("framed_topic", [True, False])
def test_history_then_live_then_gaps(framed_topic: bool) -> None:
    async def run() -> None:
        got: list[Delivery] = []
        async with KvPublisher(framed_topic=framed_topic) as engine:
            await engine.publish(STORED)
            await engine.publish({"type": "BlockRemoved", "block_hashes": [1]})
            async with running(Subscriber(engine.endpoint, engine.replay_endpoint), got):
                await until(got, 0, 1)
                assert isinstance(got[0], Batch)
                assert got[0].events == (BlockStored((1, 2), token_ids=(1, 2, 3, 4), block_size=2),)
                assert isinstance(got[1], Batch)
                assert got[1].events == (BlockRemoved((1,)),)
                count = await subscribed(engine, got)
                await until(got, *range(count))
                await engine.publish(STORED, drop=True)
                await engine.publish(STORED, drop=True)
                await engine.publish(STORED)
                await until(got, *range(count + 3))
                assert engine.requests[0] == 0
                assert engine.requests[-1] == count - 1, "asked from the last one known"

    asyncio.run(run())


def test_a_restarted_engine_is_told_and_followed_again() -> None:
    async def run() -> None:
        got: list[Delivery] = []
        engine = KvPublisher()
        async with contextlib.AsyncExitStack() as stack:
            async with engine:
                await stack.enter_async_context(running(Subscriber(engine.endpoint, engine.replay_endpoint), got))
                before = await subscribed(engine, got)
            async with engine:  # on the same ports: the subscriber reconnects by itself
                await engine.publish(STORED, STORED)
                await eventually(lambda: Restarted() in got, within=20, what="the restart")
                await eventually(lambda: 0 in numbers(got)[before:], within=20, what="its first batch")

                async def followed() -> bool:
                    await engine.publish(STORED)
                    return len(got) > before + 2

                await eventually(followed, within=20, what="its next batches", every=0.1)
                after = numbers(got)[before:]
                assert after == [Restarted(), *range(len(after) - 1)]

    asyncio.run(run())


def test_a_restart_whose_numbers_fit_is_found_when_the_connection_comes_back() -> None:
    async def run() -> None:
        got: list[Delivery] = []
        engine = KvPublisher()
        async with contextlib.AsyncExitStack() as stack:
            async with engine:
                await stack.enter_async_context(running(Subscriber(engine.endpoint, engine.replay_endpoint), got))
                count = await subscribed(engine, got)
            async with engine:
                for _ in range(count):
                    await engine.publish(STORED, drop=True)
                expected = [*range(count), Restarted(), *range(count)]
                await eventually(lambda: numbers(got) == expected, within=20, what="the new process's batches")

    asyncio.run(run())


def test_without_a_replay_a_loss_is_told() -> None:
    async def run() -> None:
        got: list[Delivery] = []
        async with KvPublisher() as engine, running(Subscriber(engine.endpoint), got):
            count = await subscribed(engine, got)
            await engine.publish(STORED, drop=True)
            await engine.publish(STORED)
            await eventually(lambda: numbers(got)[-2:] == [Lost(count, count), count + 1], within=20, what="the loss")

    asyncio.run(run())


def test_a_silent_replay_does_not_stop_the_stream() -> None:
    async def run() -> None:
        got: list[Delivery] = []
        async with KvPublisher() as engine:
            engine.silent = True
            subscriber = Subscriber(engine.endpoint, engine.replay_endpoint, replay_seconds=0.2)
            async with running(subscriber, got):
                count = await subscribed(engine, got)
                engine.silent = False
                await engine.publish(STORED, drop=True)
                await engine.publish(STORED)
                await eventually(lambda: numbers(got)[-2:] == [count, count + 1], within=20, what="the replayed batch")

    asyncio.run(run())


def test_messages_that_are_none_are_left_out() -> None:
    async def run() -> None:
        got: list[Delivery] = []
        async with KvPublisher() as engine, running(Subscriber(engine.endpoint), got):
            count = await subscribed(engine, got)
            await engine.send_raw(b"", b"short")
            await engine.send_raw(b"", b"not eight bytes", b"x")
            await engine.publish(STORED)
            await eventually(lambda: numbers(got)[-1:] == [count], within=20, what="the next batch")
            assert all(isinstance(each, Batch | Lost) for each in got)

    asyncio.run(run())


def test_an_engine_that_comes_later_is_waited_for() -> None:
    async def run() -> None:
        got: list[Delivery] = []
        engine = KvPublisher()
        async with engine:
            pass  # its ports are known now
        async with running(Subscriber(engine.endpoint, engine.replay_endpoint, replay_seconds=0.2), got), engine:
            count = await subscribed(engine, got)
            assert numbers(got) == list(range(count))

    asyncio.run(run())
