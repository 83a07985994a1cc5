from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from llmgw_agent.kv_events import Batch, Delivery, Follower, Lost, ReplayIncompleteError, Restarted, Undecodable
from llmgw_agent.kv_events.wire import Message
from llmgw_testing.steady import steady


class Engine:
    """Processes that publish numbered batches; the last ``ring`` of the present one can be replayed."""

    def __init__(self, ring: int = 1000) -> None:
        self.ring = ring
        self.life = 0
        self.sent: list[Message] = []
        self.replays = 0
        self.silent = False

    def make(self) -> Message:
        seq = len(self.sent)
        self.sent.append(Message(seq, msgspec.msgpack.encode([float(self.life * 1_000_000 + seq), [], None])))
        return self.sent[-1]

    def restart(self) -> None:
        self.life += 1
        self.sent = []

    async def replay(self, start: int) -> AsyncGenerator[Message, None]:
        self.replays += 1
        if self.silent:
            raise ReplayIncompleteError("silent")
        for message in self.sent[-self.ring :]:
            if message.seq >= start:
                yield message


def told(deliveries: list[Delivery]) -> list[object]:
    """Batches by their time, others as they are."""
    return [each.time if isinstance(each, Batch) else each for each in deliveries]


def follow(engine: Engine, *steps: str, replay: bool = True, reconnects: bool = False) -> list[object]:
    """``+`` publishes, ``-`` publishes unseen, ``R`` restarts, ``?`` catches up."""
    got: list[Delivery] = []

    async def run() -> None:
        follower = Follower(got.append, engine.replay if replay else None)
        broken = False
        for step in "".join(steps):
            match step:
                case "+":
                    if broken and reconnects:
                        await follower.catch_up()
                    broken = False
                    await follower.published(engine.make())
                case "-":
                    engine.make()
                case "R":
                    broken = True
                    engine.restart()
                case "?":
                    await follower.catch_up()

    asyncio.run(run())
    return told(got)


LIFE = 1_000_000.0


def test_in_order() -> None:
    assert follow(Engine(), "+++") == [0, 1, 2]


def test_what_was_before_is_asked_for() -> None:
    assert follow(Engine(), "--?+") == [0, 1, 2]
    assert follow(Engine(), "--+") == [0, 1, 2]


def test_gaps_are_filled() -> None:
    engine = Engine()
    assert follow(engine, "+--+-+") == [0, 1, 2, 3, 4, 5]
    assert engine.replays == 2


def test_what_the_ring_has_lost_is_told() -> None:
    assert follow(Engine(ring=2), "+-----+") == [0, Lost(1, 4), 5, 6]
    assert follow(Engine(), "+--+", replay=False) == [0, Lost(1, 2), 3]


def test_a_silent_replay_is_a_loss() -> None:
    engine = Engine()
    engine.silent = True
    assert follow(engine, "+--+") == [0, Lost(1, 2), 3]


def test_a_smaller_number_is_a_restart() -> None:
    assert follow(Engine(), "+++R+") == [0, 1, 2, Restarted(), LIFE]
    assert follow(Engine(), "+++R-+") == [0, 1, 2, Restarted(), LIFE, LIFE + 1]
    assert follow(Engine(), "+R+") == [0, Restarted(), LIFE]


def test_a_restart_that_looks_like_a_gap_is_seen_by_the_replay() -> None:
    assert follow(Engine(), "+R---+") == [0, Restarted(), LIFE, LIFE + 1, LIFE + 2, LIFE + 3]


def test_a_restart_is_seen_by_catching_up() -> None:
    assert follow(Engine(), "+++R-?") == [0, 1, 2, Restarted(), LIFE]
    assert follow(Engine(), "+++R?") == [0, 1, 2, Restarted()]


def test_what_a_replay_brought_is_not_taken_again() -> None:
    """Messages that were queued while the replay ran come live after it."""
    engine, got = Engine(), list[Delivery]()

    async def run() -> None:
        follower = Follower(got.append, engine.replay)
        queued = [engine.make() for _ in range(4)]
        await follower.catch_up()
        for message in queued[1:]:
            await follower.published(message)
        await follower.published(engine.make())

    asyncio.run(run())
    assert told(got) == [0, 1, 2, 3, 4]


def test_a_restart_right_after_a_replay() -> None:
    assert follow(Engine(), "---?R+") == [0, 1, 2, Restarted(), LIFE]


def test_a_batch_that_is_none_counts() -> None:
    got: list[Delivery] = []

    async def run() -> None:
        follower = Follower(got.append, None)
        await follower.published(Message(0, b"\xc1"))
        await follower.published(Message(1, msgspec.msgpack.encode([1.0, [], None])))

    asyncio.run(run())
    assert isinstance(got[0], Undecodable)
    assert told(got[1:]) == [1.0]


@steady
@given(st.text("+-R?", max_size=30), st.integers(1, 6))
def test_each_life_is_told_in_order_and_losses_exactly(steps: str, ring: int) -> None:
    engine = Engine(ring)
    position: tuple[int, int] = (0, -1)
    for each in follow(engine, steps + "+", reconnects=True):
        life, seq = position
        if isinstance(each, Restarted):
            position = (-1, -1)
        elif isinstance(each, Lost):
            assert each.first == seq + 1
            assert each.last >= each.first
            position = (life, each.last)
        else:
            assert isinstance(each, float)
            now = divmod(int(each), 1_000_000)
            assert now[1] == seq + 1
            if life in (-1, now[0]) or (life == 0 and seq == -1):
                position = now
            else:
                # A restart behind more lost batches than the ring holds cannot be told from a gap; it was called a loss.
                assert ring < 6
                position = now
    assert position[1] == engine.sent[-1].seq, "the last batch was delivered"


@steady
@given(st.text("+-R?", max_size=30))
def test_with_a_long_ring_nothing_is_lost_and_no_restart_missed(steps: str) -> None:
    engine = Engine()
    told_now = follow(engine, steps + "+", reconnects=True)
    last_restart = max((at for at, each in enumerate(told_now) if isinstance(each, Restarted)), default=-1)
    assert told_now[last_restart + 1 :] == [engine.life * LIFE + seq for seq in range(len(engine.sent))]
    assert not any(isinstance(each, Lost) for each in told_now)
