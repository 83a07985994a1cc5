"""How long is waited for others, and for whom."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from llmgw_agent.weights import (
    DigestMismatchError,
    Peer,
    Sharing,
    SourceNotFoundError,
    SourceUnavailableError,
    turn,
)
from llmgw_agent.weights.line import Member
from llmgw_agent.weights.turn import Avoided, FleetTurn
from llmgw_testing.clock import FakeClock

DIGEST = "sha256:" + "0" * 64


class World:
    """What node ``me`` sees: ``line`` in etcd, and what each node says of itself."""

    def __init__(self, *line: Member, patience: float = 60) -> None:
        self.clock = FakeClock()
        self.line: list[Member] | None = list(line)
        self.says: dict[str, Sharing] = {}
        self.gone: set[str] = set()
        self.slow: set[str] = set()
        self.done = 0
        self.turn = FleetTurn(
            "content",
            "me",
            clock=self.clock,
            look=self._look,
            ask=self._ask,
            peer=lambda member: Peer(member.url, node=member.node),
            done=lambda: self.done,
            avoided=Avoided(self.clock),
            patience=patience,
        )

    async def _look(self) -> list[Member] | None:
        return self.line

    async def _ask(self, member: Member) -> Sharing | None:
        if member.node in self.gone:
            raise SourceUnavailableError("refused")
        if member.node in self.slow:
            raise TimeoutError
        return self.says.get(member.node)

    async def peers(self, within: float, step: float = 1.0) -> list[str] | None:
        """The nodes to ask; None when it still waits after ``within`` seconds."""
        asking = asyncio.ensure_future(self.turn.peers(DIGEST))
        try:
            waited = 0.0
            while not asking.done() and waited < within:
                await self.clock.advance(step)
                waited += step
            return [each.node for each in asking.result()] if asking.done() else None
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)


def fetching(node: str, since: int) -> Member:
    return Member(node, f"http://{node}", here=False, since=since)


def here(node: str, since: int = 1) -> Member:
    return Member(node, f"http://{node}", here=True, since=since)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


def test_alone_or_first_nobody_is_waited_for() -> None:
    async def test() -> None:
        assert await World().peers(5) == []
        world = World(fetching("me", 1), fetching("b", 2))
        world.says["b"] = Sharing(0, ())
        assert await world.peers(5) == []
        world = World(here("a"))
        world.line = None
        assert await world.peers(5) == [], "the store is silent"

    run(test())


def test_who_gets_on_is_waited_for_and_gives_each_file_as_soon_as_it_has_it() -> None:
    async def test() -> None:
        world = World(fetching("a", 1), fetching("me", 2))
        for size in range(1, 20):
            world.says["a"] = Sharing(size, ())
            assert await world.peers(20) is None
            assert world.turn.waits_for == "a"
        world.says["a"] = Sharing(20, (DIGEST,))
        assert await world.peers(5) == ["a"]
        assert world.turn.waits_for == ""

    run(test())


def test_the_first_that_gets_no_further_gives_way_to_the_second_and_not_to_all() -> None:
    async def test() -> None:
        world = World(fetching("a", 1), fetching("b", 2), fetching("me", 3))
        world.says = {"a": Sharing(5, ()), "b": Sharing(0, ())}
        assert await world.peers(55) is None
        assert world.turn.waits_for == "a"
        assert await world.peers(20) is None
        assert world.turn.waits_for == "b", "it waited too, and gets its own time"
        world.says["b"] = Sharing(1, ())
        assert await world.peers(50) is None
        assert await world.peers(40) == [], "neither gets on"

    run(test())


def test_while_the_store_is_silent_those_in_the_line_tell_by_themselves() -> None:
    async def test() -> None:
        world = World(fetching("a", 1), fetching("me", 2))
        world.says["a"] = Sharing(1, ())
        assert await world.peers(10) is None
        world.line = None
        for size in range(2, 10):
            world.says["a"] = Sharing(size, ())
            assert await world.peers(10) is None
        del world.says["a"]
        assert await world.peers(5) == ["a"], "it is done, though nobody could write that down"
        world.turn.left(Peer("http://a", node="a"), DIGEST, SourceNotFoundError("not here"))
        assert await world.peers(5) == [], "or it has failed"

    run(test())


def test_who_is_gone_is_not_waited_for() -> None:
    async def test() -> None:
        world = World(fetching("a", 1), fetching("me", 2))
        world.gone = {"a"}
        assert await world.peers(5) == []

    run(test())


def test_busy_givers_are_waited_for_as_long_as_anybody_gets_on() -> None:
    async def test() -> None:
        world = World(here("a"), fetching("me", 2), fetching("b", 3))
        for size in range(1, 120):
            world.says["b"] = Sharing(size, ())  # it is being given the file now
            found = await world.peers(5, step=0.5)
            assert found == ["a"]
            world.turn.left(Peer("http://a", node="a"), DIGEST, SourceUnavailableError("busy", retry_after=2))
            await world.clock.advance(1)
        for _ in range(60):
            found = await world.peers(5, step=0.5)
            if found == []:
                return
            world.turn.left(Peer("http://a", node="a"), DIGEST, SourceUnavailableError("busy", retry_after=2))
        raise AssertionError("nobody gets on, and the source is not asked")

    run(test())


def test_who_gave_wrong_bytes_or_nothing_is_not_asked_again_soon() -> None:
    async def ask(world: World) -> Sequence[str] | None:
        return await world.peers(5)

    async def test() -> None:
        peer = Peer("http://a", node="a")
        for error, seconds in (
            (DigestMismatchError("wrong"), 600),
            (SourceNotFoundError("not here"), 60),
            (SourceUnavailableError("broke off"), 30),
        ):
            world = World(here("a"), fetching("me", 2))
            assert await ask(world) == ["a"]
            world.turn.left(peer, DIGEST, error)
            assert await ask(world) == []
            await world.clock.advance(seconds - 10)
            assert await ask(world) == []
            await world.clock.advance(12)
            assert await ask(world) == ["a"]

    run(test())


def test_waiting_ends_some_time_whatever_others_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn, "LONGEST", 100)

    async def test() -> None:
        world = World(fetching("a", 1), fetching("me", 2), patience=1000)
        world.slow = {"a"}
        assert await world.peers(90) is None
        assert await world.peers(20) == []

    run(test())
