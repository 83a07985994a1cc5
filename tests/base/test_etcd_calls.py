"""Failover and repetition, with members that exist in the test only."""

from __future__ import annotations

import asyncio
from typing import cast

import grpc
import pytest

from llmgw_base.etcd.calls import IN_FLIGHT, PATIENCE, Caller
from llmgw_base.etcd.errors import OutcomeUnknownError, StoreAuthError, StoreRefusedError, StoreUnavailableError
from llmgw_base.etcd.member import Member, UnreachableError
from llmgw_base.etcd.refusal import judge
from llmgw_base.etcd.tokens import Tokens
from llmgw_base.etcd.wire import CallFailedError, Link, Metadata
from llmgw_testing.clock import FakeClock, settle
from llmgw_testing.scenario import run_clean

CODE = grpc.StatusCode


class FakeLink:
    heard = 0.0


class FakeMember:
    """Unreachable, or each call fails as ``fates`` says, one after the other, and then works."""

    def __init__(self, endpoint: str, *fates: CallFailedError, reachable: bool = True) -> None:
        self.endpoint = endpoint
        self.fates = list(fates)
        self.reachable = reachable
        self.dialled = 0
        self.link = FakeLink()

    async def dial(self) -> FakeLink:
        self.dialled += 1
        if not self.reachable:
            raise UnreachableError("connection refused")
        return self.link

    def has(self, link: object) -> bool:
        return link is self.link

    async def drop(self, link: object) -> None:
        pass

    async def close(self) -> None:
        pass


def failed(code: grpc.StatusCode, text: str) -> CallFailedError:
    return CallFailedError(judge(code, text), text)


LOST = failed(CODE.UNAVAILABLE, "Socket closed")
NOT_DONE = failed(CODE.UNAVAILABLE, "etcdserver: no leader")
BAD_TOKEN = failed(CODE.UNAUTHENTICATED, "etcdserver: invalid auth token")
REFUSED = failed(CODE.INVALID_ARGUMENT, "etcdserver: request is too large")


class Bench:
    def __init__(self, *members: FakeMember) -> None:
        self.clock = FakeClock()
        self.members = members
        self.caller = Caller(cast("list[Member]", list(members)), Tokens(None, None), self.clock)
        self.sent: list[str] = []

    async def send(self, link: Link, _: Metadata) -> str:
        member = next(each for each in self.members if each.has(link))
        self.sent.append(member.endpoint)
        if member.fates:
            raise member.fates.pop(0)
        return f"from {member.endpoint}"

    async def call(self, *, once: bool = False) -> tuple[str, bool]:
        calling = asyncio.ensure_future(self.caller.call("put /a", self.send, once=once))
        for _ in range(100):
            await self.clock.advance(0.1)
            if calling.done():
                break
        answer = await calling
        return answer.value, answer.repeated


def test_what_may_be_repeated_goes_to_the_next_member() -> None:
    async def main() -> None:
        bench = Bench(FakeMember("a", LOST), FakeMember("b", NOT_DONE), FakeMember("c"))
        assert await bench.call() == ("from c", True)
        assert bench.sent == ["a", "b", "c"]
        assert await bench.call() == ("from c", False)  # and stays there

    run_clean(main())


def test_what_may_not_be_repeated_is_repeated_only_when_it_surely_was_not_done() -> None:
    async def main() -> None:
        bench = Bench(FakeMember("a", reachable=False), FakeMember("b", NOT_DONE), FakeMember("c"))
        assert await bench.call(once=True) == ("from c", False)
        bench = Bench(FakeMember("a", NOT_DONE, LOST))
        with pytest.raises(OutcomeUnknownError, match="etcd at a: put /a: Socket closed; it may have been done or not"):
            await bench.call(once=True)
        assert bench.sent == ["a", "a"]
        bench = Bench(FakeMember("a", reachable=False))
        with pytest.raises(StoreUnavailableError) as caught:
            await bench.call(once=True)
        assert not isinstance(caught.value, OutcomeUnknownError)

    run_clean(main())


def test_an_answer_is_an_answer() -> None:
    async def main() -> None:
        bench = Bench(FakeMember("a", REFUSED), FakeMember("b"))
        with pytest.raises(StoreRefusedError, match="etcd at a: put /a: etcdserver: request is too large"):
            await bench.call()
        assert bench.sent == ["a"]
        bench = Bench(FakeMember("a", BAD_TOKEN), FakeMember("b"))
        with pytest.raises(StoreAuthError, match="invalid auth token"):  # without a user there is none to fetch
            await bench.call()

    run_clean(main())


def test_patience_ends_and_comes_back() -> None:
    async def main() -> None:
        a, b = FakeMember("a", reachable=False), FakeMember("b", reachable=False)
        bench = Bench(a, b)
        began = bench.clock.monotonic()
        with pytest.raises(StoreUnavailableError, match=r"no member answered \(a: connection refused; b: connection refused\)"):
            await bench.call()
        assert PATIENCE <= bench.clock.monotonic() - began < PATIENCE + 1
        assert a.dialled > 4
        a.dialled = b.dialled = 0
        began = bench.clock.monotonic()
        with pytest.raises(StoreUnavailableError):
            await bench.call()  # known to be away: every member once
        assert bench.clock.monotonic() - began < 0.2
        assert (a.dialled, b.dialled) == (1, 1)
        b.reachable = True
        assert await bench.call() == ("from b", False)
        b.reachable = False
        with pytest.raises(StoreUnavailableError):
            await bench.call()
        assert a.dialled > 4

    run_clean(main())


def test_a_burst_waits_for_its_turn_and_keep_alives_do_not() -> None:
    async def main() -> None:
        caller = Caller(cast("list[Member]", [FakeMember("a")]), Tokens(None, None), FakeClock())
        gate = asyncio.Event()
        under_way = 0

        async def send(_: Link, __: Metadata) -> None:
            nonlocal under_way
            under_way += 1
            await gate.wait()
            under_way -= 1

        async def quick(_: Link, __: Metadata) -> str:
            return "kept"

        burst = [asyncio.ensure_future(caller.call("put", send)) for _ in range(IN_FLIGHT * 3)]
        await settle()
        assert under_way == IN_FLIGHT
        assert (await asyncio.wait_for(caller.call("keep", quick, urgent=True), 5)).value == "kept"
        waiting = asyncio.ensure_future(caller.call("get", quick))
        await settle()
        assert not waiting.done()
        gate.set()
        await asyncio.gather(waiting, *burst)

    run_clean(main())


def test_closing_ends_what_is_being_tried() -> None:
    async def main() -> None:
        bench = Bench(FakeMember("a", reachable=False))
        calling = asyncio.ensure_future(bench.caller.call("get", bench.send))
        await bench.clock.advance(0.5)
        assert not calling.done()
        await bench.caller.close()
        await bench.clock.advance(1)
        with pytest.raises(StoreUnavailableError, match="closed by this program"):
            await calling

    run_clean(main())
