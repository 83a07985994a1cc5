"""The waiting line: order, bounds, priorities."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from llmgw_router.admission.queue import Priority, WaitQueue


@dataclass(eq=False)
class Waiter:
    name: int
    priority: Priority = Priority.NORMAL
    deadline: float = 10.0
    left: bool = False

    def try_now(self) -> bool:
        return True

    def give_up(self) -> None:
        self.left = True


def test_first_come_first_served_within_a_priority() -> None:
    queue = WaitQueue(10)
    order = [Priority.LOW, Priority.NORMAL, Priority.HIGH, Priority.NORMAL, Priority.HIGH, Priority.LOW]
    for number, priority in enumerate(order):
        assert queue.join(Waiter(number, priority))
    assert [each.name for each in iter(queue.next, None) if isinstance(each, Waiter)] == [2, 4, 1, 3, 0, 5]
    assert len(queue) == 0


def test_full_line_refuses_and_the_latest_of_the_lowest_makes_room() -> None:
    queue = WaitQueue(3)
    for number, priority in enumerate([Priority.LOW, Priority.LOW, Priority.NORMAL]):
        queue.join(Waiter(number, priority))
    assert not queue.join(Waiter(3, Priority.HIGH))
    bumped = queue.bump(Priority.HIGH)
    assert isinstance(bumped, Waiter)
    assert bumped.name == 1
    assert queue.join(Waiter(3, Priority.HIGH))
    assert queue.bump(Priority.LOW) is None, "nobody is below low"


def test_who_left_is_passed_over_and_frees_its_place() -> None:
    queue = WaitQueue(2)
    first, second = Waiter(1), Waiter(2)
    queue.join(first)
    queue.join(second)
    queue.leave(first)
    queue.leave(first)
    assert len(queue) == 1
    assert queue.join(Waiter(3))
    assert queue.next() is second


def test_put_back_is_first_again() -> None:
    queue = WaitQueue(5)
    first, second = Waiter(1), Waiter(2)
    queue.join(first)
    queue.join(second)
    taken = queue.next()
    assert taken is first
    queue.put_back(first)
    assert queue.next() is first


def test_deadlines() -> None:
    queue = WaitQueue(5)
    early, late = Waiter(1, deadline=1), Waiter(2, deadline=5)
    queue.join(early)
    queue.join(late)
    assert queue.expired(0.5) == []
    assert queue.expired(1) == [early]
    assert queue.expired(2) == []
    assert len(queue) == 1
    assert queue.drain() == [late]
    assert len(queue) == 0


actions = st.lists(st.tuples(st.sampled_from(["join", "next", "leave", "expire", "bump"]), st.integers(0, 2)), max_size=60)


@given(actions, st.integers(0, 6))
def test_the_count_is_always_right(steps: list[tuple[str, int]], length: int) -> None:
    queue = WaitQueue(length)
    inside: list[Waiter] = []
    for number, (step, priority) in enumerate(steps):
        if step == "join":
            waiter = Waiter(number, Priority(priority), deadline=number + 10)
            if queue.join(waiter):
                inside.append(waiter)
        elif step == "next":
            taken = queue.next()
            if isinstance(taken, Waiter):
                assert taken.priority == min(each.priority for each in inside)
                inside.remove(taken)
            else:
                assert not inside
        elif step == "leave" and inside:
            queue.leave(inside.pop(priority % len(inside)))
        elif step == "expire":
            for each in queue.expired(number):
                assert isinstance(each, Waiter)
                inside.remove(each)
        elif step == "bump":
            bumped = queue.bump(Priority(priority))
            if isinstance(bumped, Waiter):
                assert bumped.priority > priority
                inside.remove(bumped)
        assert len(queue) == len(inside) <= length
