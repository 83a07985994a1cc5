"""etcd holds what the agent says, whatever happens in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw_agent.publisher import RESYNC_SECONDS, Publisher
from llmgw_base.etcd.api import Deleted, Put
from llmgw_base.etcd.errors import StoreAuthError
from llmgw_testing.clock import FakeClock, settle
from llmgw_testing.memstore import MemoryStore

P = "/llmgw/v1/shards/n/"
TTL = 10.0


class Bench:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(self.clock)
        self.other = MemoryStore(self.clock, server=self.store.server)
        self.objection: str | None = None
        self.publisher = Publisher(self.store, self.clock, [P], TTL, self._ask)
        self.task: asyncio.Task[None] | None = None

    async def _ask(self) -> str | None:
        return self.objection

    async def there(self) -> dict[str, bytes]:
        return {each.key.removeprefix(P): each.value for each in (await self.other.range(P)).items}


@asynccontextmanager
async def bench() -> AsyncIterator[Bench]:
    one = Bench()
    one.task = asyncio.create_task(one.publisher.run())
    try:
        yield one
    finally:
        one.task.cancel()
        await asyncio.gather(one.task, return_exceptions=True)
        await one.publisher.close(keep=True)
        await one.store.close()
        await one.other.close()


def test_keys_are_put_changed_and_removed() -> None:
    async def body() -> None:
        async with bench() as one:
            one.publisher.put(P + "a", b"1")
            one.publisher.put(P + "b", b"1", leased=True)
            assert await one.publisher.settled(1)
            assert await one.there() == {"a": b"1", "b": b"1"}
            found = {each.key.removeprefix(P): each.lease for each in (await one.other.range(P)).items}
            assert found["a"] == 0
            assert found["b"] != 0
            one.publisher.put(P + "a", b"2")
            one.publisher.remove(P + "b")
            await settle()
            assert await one.there() == {"a": b"2"}

    asyncio.run(body())


def test_a_key_beside_those_of_others_is_put_once_and_again_with_a_new_lease() -> None:
    shared = "/llmgw/v1/weights/c/"

    async def body() -> None:
        async with bench() as one:
            await one.other.put(shared + "another", b"theirs")
            one.publisher.put(shared + "n", b"ours", leased=True)
            one.publisher.allow_sweep()
            assert await one.publisher.settled(1)
            before = {each.key: each for each in (await one.other.range(shared)).items}
            await one.clock.advance(3 * RESYNC_SECONDS)
            assert {each.key: each for each in (await one.other.range(shared)).items} == before, "nothing is written or swept"
            one.store.server.revoke(before[shared + "n"].lease)
            await one.clock.advance(TTL)
            again = {each.key: each for each in (await one.other.range(shared)).items}
            assert again[shared + "n"].value == b"ours"
            assert again[shared + "n"].lease != before[shared + "n"].lease
            assert again[shared + "another"].value == b"theirs"

    asyncio.run(body())


def test_last_words_are_heard_before_a_key_goes() -> None:
    async def body() -> None:
        async with bench() as one:
            heard: list[bytes | None] = []

            async def listen() -> None:
                async for change in one.other.watch(P):
                    if isinstance(change, Put | Deleted):
                        heard.append(change.value if isinstance(change, Put) else None)

            listener = asyncio.create_task(listen())
            one.publisher.put(P + "a", b"1", leased=True)
            await settle()
            one.publisher.remove(P + "a", last_words=b"going")
            one.publisher.remove(P + "never there", last_words=b"going")
            await settle()
            assert heard == [b"1", b"going", None]
            one.publisher.put(P + "a", b"2", leased=True)
            await settle()
            one.publisher.remove(P + "a", last_words=b"going")
            one.publisher.put(P + "a", b"3", leased=True)
            await settle()
            assert heard[3:] == [b"2", b"3"]
            listener.cancel()
            await asyncio.gather(listener, return_exceptions=True)

    asyncio.run(body())


def test_nothing_is_lost_while_etcd_is_away_and_only_the_last_word_counts() -> None:
    async def body() -> None:
        async with bench() as one:
            one.publisher.put(P + "old", b"1")
            await settle()
            one.store.down()
            one.publisher.put(P + "a", b"1")
            one.publisher.put(P + "a", b"2")
            one.publisher.remove(P + "old")
            await one.clock.advance(5)
            assert not await one.publisher.settled(0)
            assert await one.there() == {"old": b"1"}
            one.store.up()
            await one.clock.advance(3)
            assert await one.there() == {"a": b"2"}

    asyncio.run(body())


def test_after_the_loss_of_the_lease_everything_is_registered_again() -> None:
    async def body() -> None:
        async with bench() as one:
            one.publisher.put(P + "leased", b"1", leased=True)
            one.publisher.put(P + "plain", b"1")
            await settle()
            one.store.down()
            await one.clock.advance(3 * TTL)
            assert await one.there() == {"plain": b"1"}
            one.store.up()
            await one.clock.advance(3)
            assert await one.there() == {"leased": b"1", "plain": b"1"}

    asyncio.run(body())


def test_nothing_is_written_to_a_store_that_is_not_ours() -> None:
    async def body() -> None:
        async with bench() as one:
            one.publisher.put(P + "a", b"1", leased=True)
            await settle()
            one.store.wipe()
            one.objection = "another cluster"
            one.publisher.put(P + "b", b"1", leased=True)
            await one.clock.advance(3 * TTL)
            assert await one.there() == {}
            one.objection = None
            await one.clock.advance(3)
            assert await one.there() == {"a": b"1", "b": b"1"}

    asyncio.run(body())


def test_a_refusing_store_is_asked_again_without_a_hot_loop() -> None:
    async def body() -> None:
        async with bench() as one:
            await settle()
            one.store.fail_next(StoreAuthError("no permission"))
            one.publisher.put(P + "a", b"1")
            await settle()
            assert await one.there() == {}
            await one.clock.advance(1)
            assert await one.there() == {"a": b"1"}

    asyncio.run(body())


def test_what_somebody_else_changed_is_put_right_within_a_minute() -> None:
    async def body() -> None:
        async with bench() as one:
            one.publisher.put(P + "a", b"1")
            one.publisher.put(P + "b", b"1", leased=True)
            await settle()
            await one.other.put(P + "a", b"broken")
            await one.other.delete(P + "b")
            await one.other.put(P + "foreign", b"x")
            await one.clock.advance(RESYNC_SECONDS + 1)
            assert await one.there() == {"a": b"1", "b": b"1", "foreign": b"x"}, "what may be an engine's is not touched yet"
            one.publisher.allow_sweep()
            await settle()
            assert await one.there() == {"a": b"1", "b": b"1"}

    asyncio.run(body())


def test_stopping_takes_leased_keys_along_or_leaves_them() -> None:
    async def body(keep: bool) -> dict[str, bytes]:
        async with bench() as one:
            one.publisher.put(P + "a", b"1")
            one.publisher.put(P + "b", b"1", leased=True)
            await settle()
            assert one.task is not None
            one.task.cancel()
            await asyncio.gather(one.task, return_exceptions=True)
            one.publisher.remove(P + "a")
            await one.publisher.close(keep=keep)
            return await one.there()

    assert asyncio.run(body(True)) == {"a": b"1", "b": b"1"}
    assert asyncio.run(body(False)) == {}


STEPS = st.one_of(
    st.tuples(st.just("put"), st.sampled_from("abc"), st.sampled_from("xyz"), st.booleans()),
    st.tuples(st.just("remove"), st.sampled_from("abc"), st.just(""), st.just(False)),
    st.tuples(st.sampled_from(["down", "up", "lose", "wait", "long"]), st.just(""), st.just(""), st.just(False)),
    st.tuples(st.just("meddle"), st.sampled_from("abcd"), st.sampled_from("xyz"), st.booleans()),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(STEPS, max_size=25))
def test_in_the_end_etcd_holds_exactly_what_was_last_said(steps: list[tuple[str, str, str, bool]]) -> None:
    async def body() -> None:
        async with bench() as one:
            said: dict[str, bytes] = {}
            one.publisher.allow_sweep()
            for kind, key, value, flag in steps:
                match kind:
                    case "put":
                        one.publisher.put(P + key, value.encode(), leased=flag)
                        said[key] = value.encode()
                    case "remove":
                        one.publisher.remove(P + key)
                        said.pop(key, None)
                    case "meddle" if flag:
                        await one.other.delete(P + key)
                    case "meddle":
                        await one.other.put(P + key, value.encode())
                    case "down":
                        one.store.down()
                    case "up":
                        one.store.up()
                    case "lose":
                        one.store.lose_next_answer()
                    case "wait":
                        await one.clock.advance(1)
                    case "long":
                        await one.clock.advance(2 * TTL)
            one.store.up()
            await one.clock.advance(2 * RESYNC_SECONDS)
            assert await one.there() == said

    asyncio.run(body())
