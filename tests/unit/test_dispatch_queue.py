"""The queue of one version, the deadlines of all calls, and the choice of a version."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from samovar.errors import QueueFull
from samovar_dispatch.deadlines import TICK_S, DeadlineWheel
from samovar_dispatch.queue import CallQueue, retry_after_s


@dataclass(eq=False)
class Item:
    seq: int = 0
    deadline_s: float = 0.0
    priority: int = 1
    num_bytes: int = 10
    submitted_s: float = 0.0


class QueueModel(RuleBasedStateMachine):
    """Whatever happens, calls leave in their order of admission, and nothing admitted is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: CallQueue[Item] = CallQueue(max_queue=5)
        self.waiting: list[Item] = []
        self.given: list[Item] = []
        self.seq = 0

    @rule()
    def push(self) -> None:
        self.seq += 1
        item = Item(self.seq)
        if len(self.waiting) >= 5:
            with pytest.raises(QueueFull) as raised:
                self.queue.push(item, 7.0)
            assert raised.value.retry_after_s == 7.0
        else:
            self.queue.push(item, 7.0)
            self.waiting.append(item)

    @precondition(lambda self: self.waiting)
    @rule()
    def pop(self) -> None:
        item = self.queue.pop()
        assert item is min(self.waiting, key=lambda waiting: waiting.seq)
        self.waiting.remove(item)
        self.given.append(item)

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
    def all_wait_in_order(self) -> None:
        assert list(self.queue) == sorted(self.waiting, key=lambda item: item.seq)
        assert len(self.queue) == len(self.waiting)


TestQueueModel = QueueModel.TestCase


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
