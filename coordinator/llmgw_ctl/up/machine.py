"""The life of one child, as a table.

::

            spawned            ready            exited             spawned
    Idle ──────────▶ Starting ───────▶ Running ────────▶ Backoff ───────────▶ Starting
                        │ exited                            ▲
                        ├────────────── was ready before ───┘
                        └─ never was ready ─▶ Broken

    Starting, Running ── stop ──▶ Stopping ── exited ──▶ Stopped
    Idle, Backoff, Broken ── stop ──▶ Stopped

A child that dies before it was ever ready will not do better the next time: that ends ``up`` with its last words. One that
was ready is started again and again, after a pause that doubles from 0.5 s to 15 s and starts over once it ran for 30 s.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 15.0
STABLE_SECONDS = 30.0


class State(Enum):
    IDLE = "idle"
    STARTING = "starting"
    RUNNING = "running"
    BACKOFF = "backoff"
    BROKEN = "broken"
    STOPPING = "stopping"
    STOPPED = "stopped"


class Event(Enum):
    SPAWNED = "spawned"
    READY = "ready"
    EXITED = "exited"
    EXITED_UNREADY = "exited, never was ready"
    STOP = "stop"


TABLE: dict[tuple[State, Event], State] = {
    (State.IDLE, Event.SPAWNED): State.STARTING,
    (State.IDLE, Event.STOP): State.STOPPED,
    (State.STARTING, Event.READY): State.RUNNING,
    (State.STARTING, Event.EXITED): State.BACKOFF,
    (State.STARTING, Event.EXITED_UNREADY): State.BROKEN,
    (State.STARTING, Event.STOP): State.STOPPING,
    (State.RUNNING, Event.EXITED): State.BACKOFF,
    (State.RUNNING, Event.STOP): State.STOPPING,
    (State.BACKOFF, Event.SPAWNED): State.STARTING,
    (State.BACKOFF, Event.STOP): State.STOPPED,
    (State.BROKEN, Event.STOP): State.STOPPED,
    (State.STOPPING, Event.STOP): State.STOPPING,
    (State.STOPPING, Event.EXITED): State.STOPPED,
    (State.STOPPED, Event.STOP): State.STOPPED,
}


class InvalidTransitionError(Exception):
    """A bug: an event that the state does not know. Carries the child's history."""


@dataclass(slots=True)
class Life:
    """One child's state and how often it failed in a row. Times are monotonic, in seconds."""

    name: str
    state: State = State.IDLE
    failures: int = 0
    was_ready: bool = False
    _ready_at: float = 0.0
    history: list[str] = field(default_factory=list)

    def spawned(self) -> None:
        self._move(Event.SPAWNED)

    def ready(self, now: float) -> None:
        self._move(Event.READY)
        self.was_ready, self._ready_at = True, now

    def exited(self, now: float) -> None:
        if self.state is State.RUNNING and now - self._ready_at >= STABLE_SECONDS:
            self.failures = 0
        if self.state is not State.STOPPING:
            self.failures += 1
        first_start = self.state is State.STARTING and not self.was_ready
        self._move(Event.EXITED_UNREADY if first_start else Event.EXITED)

    def stop(self) -> None:
        self._move(Event.STOP)

    @property
    def pause(self) -> float:
        """Seconds to wait in Backoff."""
        return min(FIRST_PAUSE * 2.0 ** min(max(self.failures - 1, 0), 30), LONGEST_PAUSE)

    def _move(self, event: Event) -> None:
        target = TABLE.get((self.state, event))
        if target is None:
            raise InvalidTransitionError(
                f"{self.name}: {event.value} in {self.state.value}; history: {', '.join(self.history)}"
            )
        self.history.append(f"{self.state.value} -{event.value}-> {target.value}")
        del self.history[:-50]
        self.state = target
