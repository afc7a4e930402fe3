"""The queue of one version, the deadlines of all calls, and the choice of a version."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from samovar.errors import QueueFull
from samovar_dispatch.deadlines import TICK_S, DeadlineWheel
from samovar_dispatch.waiting.queue import MAX_COUNTED, Backlog, CallQueue, retry_after_s


@dataclass(eq=False)
class Item:
    seq: int = 0
    deadline_s: float = 0.0
    priority: int = 1
    num_bytes: int = 10
    submitted_s: float = 0.0


class QueueModel(RuleBasedStateMachine):
    """Whatever happens, calls of one priority leave in their order of admission, and nothing admitted is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.backlog = Backlog()
        self.queue: CallQueue[Item] = CallQueue(5, self.backlog)
        self.waiting: list[Item] = []
        self.given: list[Item] = []
        self.seq = 0

    @rule(priority=st.integers(0, 3), newest_first=st.booleans())
    def push(self, priority: int, newest_first: bool) -> None:
        self.seq += 1
        item = Item(self.seq, priority=priority, submitted_s=float(self.seq))
        mates = [waiting for waiting in self.waiting if waiting.priority == priority]
        below = [waiting for waiting in self.waiting if waiting.priority > priority]
        if len(self.waiting) >= 5 and not below and not (newest_first and mates):
            with pytest.raises(QueueFull) as raised:
                self.queue.push(item, 7.0, newest_first=newest_first)
            assert raised.value.retry_after_s == 7.0
            return
        evicted = self.queue.push(item, 7.0, newest_first=newest_first)
        if len(self.waiting) < 5:
            assert evicted is None
        elif below:
            assert evicted is max(below, key=lambda waiting: (waiting.priority, waiting.seq))
        else:
            assert evicted is min(mates, key=lambda waiting: waiting.seq)
        self.waiting = [waiting for waiting in [*self.waiting, item] if waiting is not evicted]

    @precondition(lambda self: self.waiting)
    @rule(newest=st.booleans())
    def pop(self, newest: bool) -> None:
        priorities = {waiting.priority for waiting in self.waiting}
        item = self.queue.pop(newest=newest)
        assert item.priority in ((0, 1) if {0, 1} <= priorities else (min(priorities),))
        mates = [waiting for waiting in self.waiting if waiting.priority == item.priority]
        assert item is (max if newest else min)(mates, key=lambda waiting: waiting.seq)
        self.waiting.remove(item)
        self.given.append(item)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def take_older(self, data: st.DataObject) -> None:
        limit_s = data.draw(st.sampled_from(self.waiting)).submitted_s
        taken = self.queue.take_older(limit_s)
        assert {item.seq for item in taken} == {item.seq for item in self.waiting if item.submitted_s < limit_s}
        self.waiting = [item for item in self.waiting if item not in taken]

    @precondition(lambda self: self.given)
    @rule(data=st.data())
    def put_back(self, data: st.DataObject) -> None:
        returning = data.draw(st.lists(st.sampled_from(self.given), unique_by=id))
        self.queue.put_back(returning)
        self.given = [item for item in self.given if item not in returning]
        self.waiting += returning

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        item = data.draw(st.sampled_from(self.waiting))
        assert self.queue.remove(item)
        assert not self.queue.remove(item)
        self.waiting.remove(item)

    @invariant()
    def everybody_has_a_place(self) -> None:
        order = sorted(self.waiting, key=lambda item: (item.priority, item.seq))
        assert [self.queue.place(item) for item in order] == list(range(len(order)))
        assert all(self.queue.place(item) is None for item in self.given)

    @invariant()
    def all_wait_in_order(self) -> None:
        assert list(self.queue) == sorted(self.waiting, key=lambda item: (item.priority, item.seq))
        assert len(self.queue) == len(self.waiting)
        assert self.queue.oldest() is next(iter(self.queue), None)
        assert self.backlog.num_bytes == 10 * len(self.waiting)


TestQueueModel = QueueModel.TestCase


def test_places_far_behind_are_not_counted_out() -> None:
    queue: CallQueue[Item] = CallQueue(2 * MAX_COUNTED)
    items = [Item(seq, priority=seq % 2) for seq in range(2 * MAX_COUNTED)]
    for item in items:
        queue.push(item, 1.0)
    assert queue.place(items[-1]) == MAX_COUNTED
    assert queue.place(items[2 * 700]) == 700


def test_high_goes_first_but_normal_is_not_starved() -> None:
    queue: CallQueue[Item] = CallQueue(100)
    for seq in range(20):
        queue.push(Item(seq, priority=seq % 4), 1.0)
    assert [queue.num_ahead(priority) for priority in range(4)] == [6, 10, 15, 20]
    order = [queue.pop().priority for _ in range(20)]
    assert order == [0, 0, 0, 0, 1, 0, 1, 1, 1, 1, *[2] * 5, *[3] * 5]


def test_bodies_that_wait_are_bounded_over_all_queues() -> None:
    backlog = Backlog(25)
    queues: list[CallQueue[Item]] = [CallQueue(9, backlog), CallQueue(9, backlog)]
    queues[0].push(Item(1), 1.0)
    with backlog.holding(10):
        with pytest.raises(QueueFull):
            queues[1].push(Item(2), 1.0)
        with pytest.raises(QueueFull), backlog.holding(6):
            raise AssertionError
    queues[1].push(Item(2), 1.0)
    queues[1].pop()
    assert backlog.num_bytes == 10


@pytest.mark.parametrize(("expected_s", "retry_s"), [(0.0, 1.0), (5.0, 5.0), (1000.0, 60.0)])
def test_retry_after_is_the_expected_wait_within_bounds(expected_s: float, retry_s: float) -> None:
    assert retry_after_s(expected_s) == retry_s


@given(st.lists(st.floats(0.0, 10.0), min_size=1, max_size=50), st.floats(0.0, 11.0))
def test_deadlines_pass_within_a_tick(deadlines_s: list[float], now_s: float) -> None:
    wheel: DeadlineWheel[Item] = DeadlineWheel()
    items = [Item(deadline_s=deadline_s) for deadline_s in deadlines_s]
    for item in items:
        wheel.add(item)
    gone = items.pop()
    wheel.discard(gone)
    wheel.discard(gone)
    expired = wheel.expire(now_s)
    assert gone not in expired
    assert all(item.deadline_s <= now_s for item in expired)
    assert all(item.deadline_s > now_s - TICK_S - 1e-9 for item in items if item not in expired)
    assert len(wheel) == len(items) - len(expired)
    due_s = wheel.next_due_s()
    remaining = [item.deadline_s for item in items if item not in expired]
    assert (due_s is None) == (not remaining)
    assert due_s is None or 0 <= due_s - min(remaining) <= TICK_S + 1e-9


def test_an_earlier_deadline_asks_for_the_timer() -> None:
    wheel: DeadlineWheel[Item] = DeadlineWheel()
    assert wheel.add(Item(deadline_s=5.0))
    assert not wheel.add(Item(deadline_s=9.0))
    assert wheel.add(Item(deadline_s=1.0))
