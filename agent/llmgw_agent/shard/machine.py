"""The life of a shard as a table of moves.

::

    Assigned ─▶ Installing ─▶ Fetching ─▶ Starting ─▶ Probing ─▶ Ready ⇄ Suspect
       │            │            │           │           │         │        │
       │            └────────────┴─────┬─────┴───────────┴─────────┴────────┤
       │                               ▼                                    │
       │                             Failed ──(backoff)──▶ Installing       │
       │                               ▼                                    │
       │     (any of the first five) Rejected                               │
       ▼                                                                    ▼
    Stopped ◀───────────────────────── Draining ◀──── (any: the wish is gone)

- *Assigned*: the wish is known. *Installing*: the engine's program is looked up, or installed.
- *Fetching*: the weights are looked up, and fetched if they are not here.
- *Starting*: the process runs, its port is not open; or it waits for other nodes of its replica.
- *Probing*: it listens and is asked for a first token.
- *Ready*: routers may send requests. *Suspect*: it runs and does not answer; routers may not.
- *Failed*: the attempt is over and another one follows, when, stands in the record. *Rejected*: none follows.
- *Draining*: no new requests; running ones may finish; for an operator's restart it is Installing that follows.
- *Stopped*: nothing of it is left.

An adopted engine goes from Assigned to Probing, or to Ready when it was that before and answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from llmgw_proto.records import ShardState as S

TABLE: dict[S, frozenset[S]] = {
    S.ASSIGNED: frozenset({S.INSTALLING, S.PROBING, S.READY, S.FAILED, S.REJECTED, S.DRAINING, S.STOPPED}),
    S.INSTALLING: frozenset({S.FETCHING, S.FAILED, S.REJECTED, S.DRAINING, S.STOPPED}),
    # Back to Installing: interrupted before a process ran, by a wish that was taken back at once.
    S.FETCHING: frozenset({S.INSTALLING, S.STARTING, S.FAILED, S.REJECTED, S.DRAINING, S.STOPPED}),
    S.STARTING: frozenset({S.INSTALLING, S.PROBING, S.FAILED, S.REJECTED, S.DRAINING, S.STOPPED}),
    S.PROBING: frozenset({S.READY, S.FAILED, S.REJECTED, S.DRAINING, S.STOPPED}),
    S.READY: frozenset({S.SUSPECT, S.FAILED, S.DRAINING}),
    S.SUSPECT: frozenset({S.READY, S.FAILED, S.DRAINING}),
    S.FAILED: frozenset({S.INSTALLING, S.REJECTED, S.DRAINING, S.STOPPED}),
    # The operator applied the model again: perhaps what was missing is there now.
    S.REJECTED: frozenset({S.INSTALLING, S.DRAINING, S.STOPPED}),
    # An operator's restart: what was drained starts again.
    S.DRAINING: frozenset({S.INSTALLING, S.STOPPED}),
    # A new epoch, or a changed wish, gets a machine of its own.
    S.STOPPED: frozenset(),
}


@dataclass(frozen=True, slots=True)
class Move:
    at: float
    state: S
    reason: str


class InvalidTransition(Exception):  # noqa: N818 - the field's name for it
    """A move that is not in the table: a bug in the worker; the text tells the shard's story."""

    def __init__(self, shard: str, state: S, to: S, history: tuple[Move, ...]) -> None:
        story = " → ".join(f"{move.state}{f' ({move.reason})' if move.reason else ''}" for move in history)
        super().__init__(f"shard {shard} cannot go from {state} to {to}; so far: {story}")


class Machine:
    """One shard's state. Pure: the time is given in, and ``on_move`` is told of each move."""

    def __init__(self, shard: str, now: Callable[[], float], on_move: Callable[[Move], None] = lambda _: None) -> None:
        self._shard, self._now, self._on_move = shard, now, on_move
        self._history = deque([Move(now(), S.ASSIGNED, "")], maxlen=30)

    @property
    def state(self) -> S:
        return self._history[-1].state

    @property
    def reason(self) -> str:
        return self._history[-1].reason

    @property
    def history(self) -> tuple[Move, ...]:
        return tuple(self._history)

    def to(self, state: S, reason: str = "") -> None:
        """Moves on; a move to the present state only changes the reason.

        Raises:
            InvalidTransition: the table has no such move.
        """
        if state != self.state and state not in TABLE[self.state]:
            raise InvalidTransition(self._shard, self.state, state, self.history)
        if state == self.state and reason == self.reason:
            return
        move = Move(self._now(), state, reason)
        self._history.append(move)
        self._on_move(move)
