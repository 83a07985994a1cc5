"""One caller's stream: new engine processes, gaps, and a caller who is too slow."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw_agent.kv_events import Batch, Delivery, Lost, Restarted, Subscriber, Undecodable
from llmgw_agent.kv_events.feed import Begun, Buffer, Item, Missing, Raw, Source, feed
from llmgw_base.clock import SystemClock
from llmgw_testing.kv_publisher import KvPublisher
from llmgw_testing.wait import eventually

FIRST, SECOND = (Source(name, f"tcp://{name}", None, "kv@m") for name in ("a1", "a2"))
STORED = {"type": "BlockStored", "block_hashes": [1], "token_ids": [1], "block_size": 1}


class Script:
    """A subscriber that delivers what a test says."""

    def __init__(self) -> None:
        self.deliver: Callable[[Delivery], None] | None = None
        self.ended = False

    async def run(self, deliver: Callable[[Delivery], None]) -> None:
        self.deliver = deliver
        try:
            await asyncio.Event().wait()
        finally:
            self.ended = True


def batch(seq: int, payload: bytes = b"p") -> Batch:
    return Batch(seq, 0.0, (), None, payload)


async def listen(items: list[Item], current: Callable[[], Source | None], subscribe: Callable[[Source], Script]) -> None:
    async with contextlib.aclosing(feed(current, subscribe, SystemClock())) as stream:
        async for item in stream:
            items.append(item)


def test_what_an_engine_sends_and_what_becomes_of_it_comes_in_order() -> None:
    async def body() -> None:
        now: list[Source | None] = [None]
        scripts: dict[str, Script] = {"a1": Script(), "a2": Script()}
        got: list[Item] = []
        task = asyncio.create_task(listen(got, lambda: now[0], lambda source: scripts[source.attempt]))
        now[0] = FIRST
        one, two = scripts["a1"], scripts["a2"]
        await eventually(lambda: one.deliver, within=20, what="the first engine")
        assert one.deliver is not None
        for each in (batch(0), Undecodable(1, b"?", "no"), Lost(2, 4), batch(5), Restarted(), batch(0, b"q")):
            one.deliver(each)
        await eventually(lambda: Raw(0, "kv@m", b"q") in got, within=20, what="the batch after the restart")
        # What was not taken before the restart is void, so it may be left out; nothing may be out of order.
        assert [each for each in got if isinstance(each, Begun)] == [Begun(FIRST, 1), Begun(FIRST, 2)]
        assert got[-2:] == [Begun(FIRST, 2), Raw(0, "kv@m", b"q")]
        one.deliver(batch(1))
        one.deliver(Lost(2, 2))
        await eventually(lambda: got[-2:] == [Raw(1, "kv@m", b"p"), Missing(2, 2)], within=20, what="the gap")
        now[0] = SECOND
        await eventually(lambda: two.deliver, within=20, what="the next engine")
        assert one.ended
        await eventually(lambda: got[-1] == Begun(SECOND, 3), within=20, what="word of the next engine")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert two.ended

    asyncio.run(body())


def test_the_end_of_the_shard_ends_the_stream() -> None:
    async def body() -> None:
        def gone() -> Source | None:
            raise LookupError("no such shard")

        with pytest.raises(LookupError, match="no such shard"):
            await listen([], gone, lambda _: Script())

    asyncio.run(body())


async def taken(buffer: Buffer) -> list[Item]:
    items: list[Item] = []
    with contextlib.suppress(TimeoutError):
        while True:
            async with asyncio.timeout(0):
                items.append(await buffer.take())
    return items


def test_a_slow_caller_loses_the_oldest_and_is_told() -> None:
    async def body() -> None:
        buffer = Buffer(most_batches=4)
        buffer.put(Begun(FIRST, 1))
        for seq in range(5):
            buffer.put(Raw(seq, "", b""))
        assert await taken(buffer) == [Begun(FIRST, 1), Missing(0, 2, slow=True), Raw(3, "", b""), Raw(4, "", b"")]
        large = Buffer(most_bytes=100)
        for seq in range(4):
            large.put(Raw(seq, "", b"x" * 30))
        found = await taken(large)
        assert found == [Missing(0, 2, slow=True), Raw(3, "", b"x" * 30)]

    asyncio.run(body())


@given(st.lists(st.sampled_from(["batch", "lost", "restart", "take"]), max_size=60), st.integers(1, 6))
def test_nothing_is_left_out_without_a_word(steps: list[str], most: int) -> None:
    async def body() -> None:
        buffer, got = Buffer(most_batches=most), list[Item]()
        seq = number = 0
        for step in [*steps, *(["take"] * len(steps))]:
            match step:
                case "batch":
                    buffer.put(Raw(seq, "", b""))
                    seq += 1
                case "lost":
                    buffer.put(Missing(seq, seq))
                    seq += 1
                case "restart":
                    number, seq = number + 1, 0
                    buffer.put(Begun(FIRST, number))
                case "take":
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(0):
                            got.append(await buffer.take())
        expected = 0
        for item in got:
            match item:
                case Begun():
                    expected = 0
                case Raw(seq=found):
                    assert found == expected
                    expected += 1
                case Missing(first=first, last=last):
                    assert first == expected
                    expected = last + 1
        assert expected == seq

    asyncio.run(body())


@pytest.mark.parametrize("framed_topic", [True, False])
def test_gaps_are_replayed_and_a_publisher_that_starts_again_is_seen(framed_topic: bool) -> None:
    async def body() -> None:
        engine = KvPublisher(framed_topic=framed_topic, topic="kv@m")
        got: list[Item] = []
        async with engine:
            source = Source("a1", engine.endpoint, engine.replay_endpoint, "kv@m")
            for _ in range(3):
                await engine.publish(STORED)
            stream = feed(lambda: source, lambda each: Subscriber(each.endpoint, each.replay, topic=each.topic), SystemClock())

            async def read() -> None:
                async with contextlib.aclosing(stream):
                    async for item in stream:
                        got.append(item)

            task = asyncio.create_task(read())

            def seqs() -> list[int]:
                start = max((at for at, each in enumerate(got) if isinstance(each, Begun)), default=0)
                return [each.seq for each in got[start:] if isinstance(each, Raw)]

            await eventually(lambda: seqs()[:3] == [0, 1, 2], within=20, what="what was published before")

            async def live() -> bool:
                # A ZMQ subscription takes a moment; what comes in it is replayed with the next one that arrives.
                await engine.publish(STORED)
                return len(seqs()) > 4

            await eventually(live, within=20, what="live batches", every=0.1)
            await engine.publish(STORED, drop=True)
            await engine.publish(STORED, drop=True)
            last = await engine.publish(STORED)
            await eventually(lambda: seqs() == list(range(last + 1)), within=20, what="the gap to be replayed")
        async with engine:

            async def next_process() -> bool:
                last = await engine.publish({**STORED, "block_hashes": [2]})
                return [each.number for each in got if isinstance(each, Begun)] == [1, 2] and last - 1 in seqs()

            await eventually(next_process, within=30, what="batches of the next process", every=0.1)
            assert seqs() == list(range(len(seqs())))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(body())
