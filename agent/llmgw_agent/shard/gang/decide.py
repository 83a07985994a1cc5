"""What a member of a replica over several nodes does next. Pure: its own phase and what the others say, in; a step, out.

::

    preparing ──▶ prepared ──(head: all are prepared / worker: the head started a newer attempt)──▶ started ──▶ ready
        ▲                                                                                             │          │
        └────────────── down ◀──(a process ended, here or there; the head's word is gone)─────────────┴──────────┘

- The head (rank 0) alone counts the attempts and decides when one begins. A worker only follows the head, so it watches
  nobody else; the head watches all.
- *prepared* means that engine and weights are here and that nothing of an earlier attempt runs.
- A member's attempt number stays when it goes back to prepared. So a phase below started with the present attempt's number
  says that the attempt is over there, whatever was missed in between.
- What is not known (etcd is away, a record cannot be read) changes nothing: what runs goes on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

from llmgw_proto.records import GangPhase, GangState, ShardRecord, ShardState

HEAD_RANK = 0
RUNNING = frozenset({GangPhase.STARTED, GangPhase.READY})


@dataclass(frozen=True, slots=True)
class Peer:
    """What is known of another member. ``known``: etcd has been asked and ``record`` is what it holds, None for nothing."""

    rank: int
    node: str
    record: ShardRecord | None
    known: bool = True


@dataclass(frozen=True, slots=True)
class Own:
    """This member: ``attempt`` and ``phase`` as it last said."""

    rank: int
    epoch: int
    generation: int
    state: GangState


# --- steps ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing can begin yet. ``ranks``: of those that are waited for."""

    reason: str
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Start:
    attempt: int


@dataclass(frozen=True, slots=True)
class Run:
    """The attempt goes on. ``joined``: for the head, all workers run in it. ``ready``: all that this member needs of others
    is there: for the head all workers' ports, for a worker a head that serves."""

    joined: bool
    ready: bool


@dataclass(frozen=True, slots=True)
class End:
    """The attempt is over, or none can begin, because of the member of that rank. ``final``: it will never be otherwise."""

    rank: int
    reason: str
    final: bool = False


Step: TypeAlias = Wait | Start | Run | End


# --- what a record says -----------------------------------------------------------------------------------------------


class Standing(Enum):
    """Where another member stands, seen from this epoch and, while one runs, from this attempt."""

    UNKNOWN = auto()
    ABSENT = auto()
    OLDER = auto()
    """Its record is of an earlier epoch: it has not heard of this one."""
    NEWER = auto()
    REJECTED = auto()
    GIVEN_UP = auto()
    LEAVING = auto()
    PREPARING = auto()
    PREPARED = auto()
    STARTED = auto()
    READY = auto()
    OVER = auto()
    """It had a part in this attempt and has no more."""
    AHEAD = auto()
    """It knows of a later attempt than this member does."""


#: For the head while it gathers: who can begin, who may become able to, who will not.
_GATHER: Mapping[Standing, type[Step]] = {
    Standing.UNKNOWN: Wait,
    Standing.ABSENT: Wait,
    Standing.OLDER: Wait,
    Standing.NEWER: Wait,
    Standing.REJECTED: End,
    Standing.GIVEN_UP: End,
    Standing.LEAVING: Wait,
    Standing.PREPARING: Wait,
    Standing.PREPARED: Start,
    # It has not noticed yet that the attempt before is over.
    Standing.STARTED: Wait,
    Standing.READY: Wait,
}

#: For the head during an attempt. PREPARING and PREPARED: it has not begun yet, which ends the attempt once it had.
_DURING: Mapping[Standing, type[Step]] = {
    Standing.UNKNOWN: Run,
    Standing.ABSENT: End,
    Standing.OLDER: End,
    Standing.NEWER: End,
    Standing.REJECTED: End,
    Standing.GIVEN_UP: End,
    Standing.LEAVING: Run,
    Standing.PREPARING: Run,
    Standing.PREPARED: Run,
    Standing.STARTED: Run,
    Standing.READY: Run,
    Standing.OVER: End,
    Standing.AHEAD: End,
}


def standing(peer: Peer, epoch: int, generation: int, attempt: int | None) -> Standing:
    """``attempt``: the one that runs; None while none does."""
    record = peer.record
    if record is None or record.gang is None:
        return Standing.ABSENT if peer.known else Standing.UNKNOWN
    if record.epoch != epoch:
        return Standing.OLDER if record.epoch < epoch else Standing.NEWER
    phase, theirs = record.gang.phase, record.gang.attempt
    if record.state is ShardState.REJECTED:
        # What was rejected before the model was applied again is about to be tried again.
        return Standing.REJECTED if record.generation >= generation or theirs == attempt else Standing.PREPARING
    if record.state is ShardState.STOPPED:
        return Standing.OVER if theirs == attempt else Standing.LEAVING
    if attempt is not None and theirs > attempt:
        return Standing.AHEAD
    if attempt is not None and theirs == attempt and phase not in RUNNING:
        return Standing.OVER
    if record.state is ShardState.DRAINING:
        return Standing.LEAVING
    if record.state is ShardState.FAILED and record.next_attempt_at is None and phase not in RUNNING:
        return Standing.GIVEN_UP
    if phase in RUNNING and (attempt is None or theirs == attempt):
        return Standing.READY if phase is GangPhase.READY else Standing.STARTED
    return Standing.PREPARED if phase is GangPhase.PREPARED else Standing.PREPARING


def decide(own: Own, peers: Sequence[Peer], joined: Collection[int] = ()) -> Step:
    """
    Args:
        peers: for the head all workers, for a worker the head alone.
        joined: ranks that were seen to run in the present attempt.
    """
    if own.rank == HEAD_RANK:
        return _lead(own, peers, joined) if own.state.phase in RUNNING else _gather(own, peers)
    head = next(peer for peer in peers if peer.rank == HEAD_RANK)
    return _accompany(own, head) if own.state.phase in RUNNING else _await(own, head)


def _gather(own: Own, peers: Sequence[Peer]) -> Step:
    missing: list[Peer] = []
    for peer in peers:
        place = standing(peer, own.epoch, own.generation, None)
        kind = _GATHER[place]
        if kind is End:
            return End(peer.rank, _why(peer), final=place is Standing.REJECTED)
        if kind is Wait:
            missing.append(peer)
    if missing:
        return Wait(f"waits for {', '.join(map(describe, missing))}", tuple(peer.rank for peer in missing))
    if own.state.phase is not GangPhase.PREPARED:
        return Wait("is not prepared itself", (own.rank,))
    return Start(1 + max([own.state.attempt, *(_state(peer).attempt for peer in peers)]))


def _lead(own: Own, peers: Sequence[Peer], joined: Collection[int]) -> Step:
    serves, places = own.state.phase is GangPhase.READY, set()
    for peer in peers:
        place = standing(peer, own.epoch, own.generation, own.state.attempt)
        late = place in (Standing.PREPARING, Standing.PREPARED)
        # A head that serves had all of them.
        if _DURING[place] is End or (late and (serves or peer.rank in joined)):
            return End(peer.rank, _why(peer), final=place is Standing.REJECTED)
        places.add(place)
    return Run(joined=places <= {Standing.STARTED, Standing.READY}, ready=places <= {Standing.READY})


def _await(own: Own, head: Peer) -> Step:
    record = head.record
    current = record is not None and record.epoch == own.epoch and own.state.phase is GangPhase.PREPARED
    if current and _state(head).attempt > own.state.attempt and _state(head).phase is GangPhase.STARTED:
        return Start(_state(head).attempt)
    # Not what the head waits for: each step of one download would be a write of all members that are prepared.
    return Wait(f"waits for the head on {describe(head, reason=False)}", (HEAD_RANK,))


def _accompany(own: Own, head: Peer) -> Step:
    record, said = head.record, _state(head)
    if record is None:
        return End(HEAD_RANK, _why(head)) if head.known else Run(joined=False, ready=False)
    if record.epoch == own.epoch and said.attempt == own.state.attempt and said.phase in RUNNING:
        return Run(joined=True, ready=said.phase is GangPhase.READY)
    return End(HEAD_RANK, _why(head))


def _state(peer: Peer) -> GangState:
    record = peer.record
    return record.gang if record is not None and record.gang is not None else GangState()


# --- in words ---------------------------------------------------------------------------------------------------------


def describe(peer: Peer, *, reason: bool = True) -> str:
    """``node b (Fetching: 1.2 of 4.7 GB)``"""
    record = peer.record
    if record is None:
        return f"node {peer.node} ({'has said nothing of it' if peer.known else 'etcd does not tell'})"
    said = f": {record.reason}" if record.reason and reason else ""
    phase = f", {record.gang.phase}" if record.gang is not None and not said else ""
    return f"node {peer.node} ({record.state}{phase}{said})"


def _why(peer: Peer) -> str:
    record = peer.record
    if record is None:
        return f"node {peer.node} has no part in it any more: its agent was stopped, or its shard was withdrawn"
    said = _state(peer)
    given_up = record.state is ShardState.FAILED and record.next_attempt_at is None
    if record.reason and (record.state is ShardState.REJECTED or (given_up and not said.note)):
        return f"node {peer.node}: {record.reason}"
    return f"node {peer.node}: {said.note or 'its engine ended'}"
