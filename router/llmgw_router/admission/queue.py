"""The waiting line of one model: bounded, by priority, first come first served within one. Pure."""

from __future__ import annotations

from collections import deque
from enum import IntEnum
from typing import Protocol


class Priority(IntEnum):
    HIGH = 0
    NORMAL = 1
    LOW = 2


BY_NAME = {b"high": Priority.HIGH, b"normal": Priority.NORMAL, b"low": Priority.LOW}


class Waiting(Protocol):
    """Who waits."""

    priority: Priority
    deadline: float
    """Monotonic; when it gives up."""
    left: bool
    """It is no longer interested."""

    def try_now(self) -> bool:
        """Its turn has come. Returns False when there is no place for it yet."""
        ...

    def give_up(self) -> None:
        """It waited for too long, or had to make room."""
        ...


class WaitQueue:
    """Who leaves is only marked (``left``) and taken out when its turn comes, so leaving is cheap."""

    def __init__(self, length: int) -> None:
        self._limit = length
        self._lines: tuple[deque[Waiting], ...] = (deque(), deque(), deque())
        self.count = 0
        """How many wait."""

    def __len__(self) -> int:
        return self.count

    def join(self, who: Waiting) -> bool:
        """Returns False when the line is full; :meth:`bump` may make room then."""
        if self.count >= self._limit:
            return False
        self._lines[who.priority].append(who)
        self.count += 1
        return True

    def bump(self, priority: Priority) -> Waiting | None:
        """Takes out the latest of the lowest priority below ``priority``, to make room."""
        for line in self._lines[:priority:-1]:
            while line:
                last = line.pop()
                if not last.left:
                    self.count -= 1
                    return last
        return None

    def next(self) -> Waiting | None:
        """Takes out the first of the highest priority."""
        for line in self._lines:
            while line:
                first = line.popleft()
                if not first.left:
                    self.count -= 1
                    return first
        return None

    def put_back(self, who: Waiting) -> None:
        """Gives the first place back to one that could not be served after all."""
        self._lines[who.priority].appendleft(who)
        self.count += 1

    def leave(self, who: Waiting) -> None:
        """Marks one that waits here as gone."""
        if not who.left:
            who.left = True
            self.count -= 1

    def expired(self, now: float) -> list[Waiting]:
        """Takes out all whose deadline has passed, and sweeps up those that left."""
        late = [each for line in self._lines for each in line if not each.left and each.deadline <= now]
        for each in late:
            self.leave(each)
        for line in self._lines:
            if any(each.left for each in line):
                stay = [each for each in line if not each.left]
                line.clear()
                line.extend(stay)
        return late

    def drain(self) -> list[Waiting]:
        """Takes out all."""
        waiting = [each for line in self._lines for each in line if not each.left]
        for line in self._lines:
            line.clear()
        self.count = 0
        return waiting
