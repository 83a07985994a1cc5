"""What a member of a replica over several nodes does next: by table, and by random lives of whole replicas."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw_agent.shard.gang.decide import (
    _DURING,
    _GATHER,
    RUNNING,
    End,
    Own,
    Peer,
    Run,
    Standing,
    Start,
    Wait,
    decide,
    describe,
    standing,
)
from llmgw_proto.records import GangPhase as P
from llmgw_proto.records import GangState, ShardRecord
from llmgw_proto.records import ShardState as S

EPOCH, GENERATION = 3, 2


def record(phase: P, attempt: int = 0, state: S = S.STARTING, epoch: int = EPOCH, note: str = "", **fields: Any) -> ShardRecord:
    data: dict[str, Any] = {"shard": "m-1.0", "replica": "m-1", "model": "m", "node": "b", "engine": "vllm", "updated_at": 0.0}
    gang = GangState(attempt=attempt, phase=phase, address="10.0.0.2", note=note)
    return ShardRecord(epoch=epoch, state=state, gang=gang, **(data | {"generation": GENERATION} | fields))


def worker(found: ShardRecord | None, rank: int = 1, *, known: bool = True) -> Peer:
    return Peer(rank, "bcd"[rank - 1], found, known)


def head(found: ShardRecord | None, *, known: bool = True) -> Peer:
    return Peer(0, "a", found, known)


def own(rank: int, phase: P, attempt: int = 0) -> Own:
    return Own(rank, EPOCH, GENERATION, GangState(attempt=attempt, phase=phase))


@pytest.mark.parametrize(
    ("found", "attempt", "expected"),
    [
        (None, None, Standing.ABSENT),
        (record(P.PREPARED, epoch=2), None, Standing.OLDER),
        (record(P.PREPARED, epoch=4), 1, Standing.NEWER),
        (record(P.PREPARING, state=S.REJECTED), None, Standing.REJECTED),
        # The model was applied again since: it is about to try again.
        (record(P.PREPARING, state=S.REJECTED, generation=1), None, Standing.PREPARING),
        (record(P.DOWN, 5, state=S.REJECTED, generation=1), 5, Standing.REJECTED),
        (record(P.PREPARING, state=S.FAILED), None, Standing.GIVEN_UP),
        (record(P.PREPARING, state=S.FAILED, next_attempt_at=9.0), None, Standing.PREPARING),
        (record(P.PREPARED, 4), None, Standing.PREPARED),
        (record(P.STARTED, 4), None, Standing.STARTED),
        (record(P.READY, 4), None, Standing.READY),
        (record(P.PREPARED, 4), 5, Standing.PREPARED),
        (record(P.STARTED, 5), 5, Standing.STARTED),
        (record(P.READY, 5, state=S.READY), 5, Standing.READY),
        (record(P.READY, 5, state=S.DRAINING), 5, Standing.LEAVING),
        (record(P.DOWN, 5, state=S.FAILED), 5, Standing.OVER),
        # What came between was missed: it went down and is prepared again.
        (record(P.PREPARED, 5), 5, Standing.OVER),
        (record(P.PREPARING, 5, state=S.INSTALLING), 5, Standing.OVER),
        (record(P.STARTED, 6), 5, Standing.AHEAD),
        # It still runs what is over already: neither prepared nor part of this attempt.
        (record(P.STARTED, 4), 5, Standing.PREPARING),
    ],
)
def test_where_another_member_stands(found: ShardRecord | None, attempt: int | None, expected: Standing) -> None:
    assert standing(worker(found), EPOCH, GENERATION, attempt) is expected


def test_the_tables_know_every_standing() -> None:
    assert set(_DURING) == set(Standing)
    assert set(Standing) - set(_GATHER) == {Standing.OVER, Standing.AHEAD}, "these need an attempt that runs"


def test_the_head_starts_when_all_are_prepared_and_counts_on_from_what_anybody_knows() -> None:
    ready = [worker(record(P.PREPARED, 4)), worker(record(P.PREPARED, 7), 2)]
    assert decide(own(0, P.PREPARED, 5), ready) == Start(8)
    assert isinstance(decide(own(0, P.PREPARING, 5), ready), Wait)


def test_the_head_says_whom_it_waits_for() -> None:
    fetching = record(P.PREPARING, state=S.FETCHING, reason="fetching 1.2 of 4.7 GB")
    step = decide(own(0, P.PREPARED), [worker(fetching), worker(record(P.PREPARED), 2), worker(None, 3)])
    assert step == Wait("waits for node b (Fetching: fetching 1.2 of 4.7 GB), node d (has said nothing of it)", (1, 3))
    assert "etcd does not tell" in describe(worker(None, known=False))


def test_a_worker_does_not_repeat_whom_the_head_waits_for() -> None:
    # Else each step of one download would be a write of every member that is prepared.
    waiting = record(P.PREPARED, rank=0, state=S.STARTING, reason="waits for node c (Fetching: fetching 1.2 of 4.7 GB)")
    step = decide(own(1, P.PREPARED), [head(waiting)])
    assert step == Wait("waits for the head on node a (Starting, prepared)", (0,))


@pytest.mark.parametrize("phase", [P.PREPARED, P.STARTED, P.READY])
def test_a_rejected_member_rejects_the_whole(phase: P) -> None:
    rejected = record(P.DOWN, 5, state=S.REJECTED, reason="weights /w: no such file")
    assert decide(own(0, phase, 5), [worker(rejected)]) == End(1, "node b: weights /w: no such file", final=True)


@pytest.mark.parametrize(
    ("found", "joined", "expected"),
    [
        (worker(record(P.PREPARED, 4)), (), Run(joined=False, ready=False)),
        (worker(record(P.STARTED, 5)), (), Run(joined=True, ready=False)),
        (worker(record(P.READY, 5)), (), Run(joined=True, ready=True)),
        (worker(None, known=False), (1,), Run(joined=False, ready=False)),
        (worker(None), (), End),
        (worker(record(P.PREPARED, 4)), (1,), End),
        (worker(record(P.DOWN, 5, note="killed.")), (), End(1, "node b: killed.")),
        (worker(record(P.PREPARING, 1, epoch=4)), (), End),
    ],
)
def test_the_head_during_an_attempt(found: Peer, joined: tuple[int, ...], expected: object) -> None:
    step = decide(own(0, P.STARTED, 5), [found], joined)
    assert type(step) is expected if isinstance(expected, type) else step == expected


@pytest.mark.parametrize(
    ("mine", "found", "expected"),
    [
        (own(1, P.PREPARED, 4), head(record(P.STARTED, 5)), Start(5)),
        (own(1, P.PREPARED, 0), head(record(P.STARTED, 5)), Start(5)),
        # Too late to join: the head sees that it lacks this member and ends the attempt itself.
        (own(1, P.PREPARED, 4), head(record(P.READY, 5)), Wait),
        (own(1, P.PREPARED, 5), head(record(P.STARTED, 5)), Wait),
        (own(1, P.PREPARED, 4), head(record(P.STARTED, 5, epoch=2)), Wait),
        (own(1, P.PREPARED, 4), head(None), Wait),
        (own(1, P.PREPARING, 4), head(record(P.STARTED, 5)), Wait),
        (own(1, P.STARTED, 5), head(record(P.STARTED, 5)), Run(joined=True, ready=False)),
        (own(1, P.READY, 5), head(record(P.READY, 5, state=S.READY)), Run(joined=True, ready=True)),
        (own(1, P.READY, 5), head(record(P.READY, 5, state=S.DRAINING)), Run(joined=True, ready=True)),
        (own(1, P.READY, 5), head(None, known=False), Run(joined=False, ready=False)),
        (own(1, P.READY, 5), head(None), End),
        (own(1, P.READY, 5), head(record(P.DOWN, 5, note="out of memory.")), End(0, "node a: out of memory.")),
        (own(1, P.READY, 5), head(record(P.PREPARED, 5)), End),
        (own(1, P.READY, 5), head(record(P.STARTED, 6)), End),
        (own(1, P.READY, 5), head(record(P.STARTED, 1, epoch=4)), End),
    ],
)
def test_a_worker_follows_its_head(mine: Own, found: Peer, expected: object) -> None:
    step = decide(mine, [found])
    assert type(step) is expected if isinstance(expected, type) else step == expected


# --- whole lives ------------------------------------------------------------------------------------------------------


@dataclass
class Node:
    """An agent's shell, reduced to what concerns the others: it acts on what it has seen, which may be old."""

    rank: int
    size: int
    state: GangState = field(default_factory=GangState)
    process: int | None = None
    seen: dict[int, GangState] = field(default_factory=dict)
    joined: set[int] = field(default_factory=set)

    def say(self, **fields: Any) -> None:
        self.state = self.state.model_copy(update=fields)

    def look(self, nodes: list[Node], rank: int) -> None:
        self.seen[rank] = nodes[rank].state

    def step(self, listens: bool) -> None:
        if self.state.phase in RUNNING and self.process is None and self.rank > 0:
            # Its process died.
            self.say(phase=P.DOWN)
        if self.state.phase is P.DOWN:
            self.process = None
            self.joined.clear()
            self.say(phase=P.PREPARING)
        elif self.state.phase is P.PREPARING:
            self.say(phase=P.PREPARED)
        else:
            self._decide(listens)

    def _decide(self, listens: bool) -> None:
        others = [rank for rank in range(self.size) if rank != self.rank] if self.rank == 0 else [0]
        peers = [
            Peer(
                rank, f"n{rank}", record(seen.phase, seen.attempt) if (seen := self.seen.get(rank)) else None, seen is not None
            )
            for rank in others
        ]
        if self.state.phase in RUNNING:
            self.joined |= {rank for rank in others if rank in self.seen and _is_in(self.seen[rank], self.state.attempt)}
        match decide(Own(self.rank, EPOCH, GENERATION, self.state), peers, self.joined):
            case Start(attempt):
                self.say(attempt=attempt, phase=P.STARTED)
                if self.rank > 0 or not listens:
                    self.process = attempt
                    if self.rank > 0 and listens:
                        self.say(phase=P.READY)
            case Run(joined, ready):
                if self.rank > 0 and ready:
                    self.say(phase=P.READY)
                elif self.rank == 0 and self.process is None and ready:
                    self.process = self.state.attempt
                elif self.rank == 0 and self.process is not None and joined:
                    self.say(phase=P.READY)
            case End():
                self.say(phase=P.DOWN)
            case _:
                pass

    def die(self) -> None:
        """The engine's process ends."""
        if self.process is not None:
            self.process = None
            self.say(phase=P.DOWN)

    def forget(self) -> None:
        """The agent starts anew: what it knew of the others is gone, its state file and its engine are there."""
        self.seen.clear()
        self.joined.clear()
        if self.process is None and self.state.phase in RUNNING:
            self.say(phase=P.PREPARING)


def _is_in(state: GangState, attempt: int) -> bool:
    return state.attempt == attempt and state.phase in RUNNING


def settled(nodes: list[Node]) -> bool:
    attempts = {node.process for node in nodes}
    return len(attempts) == 1 and None not in attempts and all(node.state.phase is P.READY for node in nodes)


Events = st.lists(
    st.tuples(st.sampled_from(["look", "look", "step", "step", "die", "forget"]), st.integers(0, 2), st.integers(0, 2)),
    max_size=80,
)


@settings(max_examples=300, deadline=None)
@given(events=Events, size=st.integers(2, 3), listens=st.booleans())
def test_whatever_happens_they_end_up_in_one_attempt(events: list[tuple[str, int, int]], size: int, listens: bool) -> None:
    nodes = [Node(rank, size) for rank in range(size)]
    for what, who, whom in events:
        node = nodes[who % size]
        before = node.process
        match what:
            case "look":
                node.look(nodes, whom % size)
            case "step":
                node.step(listens)
            case "die":
                node.die()
            case _:
                node.forget()
        if node.process is not None and node.process != before:
            check_start(node, nodes)
    for _ in range(12):
        for node in nodes:
            for rank in range(size):
                node.look(nodes, rank)
            node.step(listens)
        if settled(nodes):
            break
    assert settled(nodes), nodes


def check_start(node: Node, nodes: list[Node]) -> None:
    """A process began just now."""
    attempt = node.process
    assert attempt is not None
    assert nodes[0].state.attempt >= attempt, "the head alone counts"
    assert node.state.attempt == attempt
    if node.rank == 0:
        for other in nodes[1:]:
            # Nobody is behind with an engine of an earlier attempt still running, and nobody is ahead.
            assert other.process in (None, attempt)
            assert other.state.attempt <= attempt
