"""Which instance gets the next call, and what becomes of calls whose instance was lost."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from samovar_dispatch.retries.retry import Verdict, after_loss, may_have_started
from samovar_dispatch.slots import MAX_PREFETCH, Seat, SeatTable, prefetch_allowance, smoothed


class SeatModel(RuleBasedStateMachine):
    """The choice is always a least loaded open seat with room, whatever came before."""

    def __init__(self) -> None:
        super().__init__()
        self.table: SeatTable[int] = SeatTable()
        self.seats: list[Seat[int]] = []
        self.loads: dict[Seat[int], int] = {}

    @rule(slots=st.integers(1, 3))
    def add(self, slots: int) -> None:
        seat = Seat(len(self.seats), slots)
        self.seats.append(seat)
        self.loads[seat] = 0
        self.table.open(seat)
        self.table.open(seat)

    @precondition(lambda self: self.seats)
    @rule(data=st.data(), opened=st.booleans())
    def open_or_close(self, data: st.DataObject, opened: bool) -> None:
        seat = data.draw(st.sampled_from(self.seats))
        (self.table.open if opened else self.table.close)(seat)
        assert seat.open is opened

    @precondition(lambda self: self.seats)
    @rule(data=st.data())
    def limit(self, data: st.DataObject) -> None:
        seat = data.draw(st.sampled_from(self.seats))
        self.table.limit(seat, data.draw(st.integers(1, seat.slots)))

    @rule(allowance=st.integers(0, 2))
    def allow(self, allowance: int) -> None:
        self.table.allowance = allowance

    @rule()
    def take(self) -> None:
        allowance = self.table.allowance
        free = [self.loads[seat] for seat in self.seats if seat.open and self.loads[seat] < seat.limit + allowance]
        seat = self.table.take()
        if seat is None:
            assert not free
        else:
            assert self.loads[seat] == min(free)
            self.loads[seat] += 1

    @precondition(lambda self: any(self.loads.values()))
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        seat = data.draw(st.sampled_from([seat for seat in self.seats if self.loads[seat]]))
        self.table.give_back(seat)
        self.loads[seat] -= 1

    @invariant()
    def loads_agree(self) -> None:
        assert all(seat.load == load for seat, load in self.loads.items())
        assert self.table.num_slots == sum(seat.limit for seat in self.seats if seat.open)
        assert self.table.num_open == sum(seat.open for seat in self.seats)
        free = [max(0, seat.limit - self.loads[seat]) for seat in self.seats if seat.open]
        assert self.table.num_free == sum(free)
        least = self.table.least_loaded()
        open_loads = [load for seat, load in self.loads.items() if seat.open]
        assert (least.load if least else None) == min(open_loads, default=None)


TestSeatModel = SeatModel.TestCase


@pytest.mark.parametrize(
    ("service_s", "expected"), [(0.0, 0), (1e-6, MAX_PREFETCH), (0.0005, 4), (0.002, 1), (0.0021, 0), (5.0, 0)]
)
def test_only_fast_functions_are_given_calls_ahead(service_s: float, expected: int) -> None:
    assert prefetch_allowance(service_s) == expected


def test_service_time_is_each_calls_share_of_its_batch() -> None:
    assert smoothed(0.0, 8000, 8) == pytest.approx(0.001)
    assert smoothed(0.001, 2000, 1) == pytest.approx(0.0011)


@pytest.mark.parametrize(
    ("position", "slots", "notified", "expected"),
    [(0, 1, False, True), (1, 1, False, False), (3, 4, False, True), (0, 1, True, True), (9, 1, True, True)],
)
def test_only_the_oldest_can_have_started_or_who_said_so(
    position: int, slots: int, notified: bool, expected: bool
) -> None:
    assert may_have_started(position, slots, notified=notified) is expected


@pytest.mark.parametrize(
    ("wanted", "started", "num_attempts", "retry_on_crash", "remaining_s", "expected"),
    [
        (False, True, 1, True, 9.0, Verdict.DROP),
        (True, False, 0, False, 9.0, Verdict.REDISPATCH),
        (True, False, 0, True, 0.0, Verdict.REDISPATCH),
        (True, True, 1, True, 9.0, Verdict.RETRY_ALONE),
        (True, True, 2, True, 9.0, Verdict.FAIL),
        (True, True, 1, False, 9.0, Verdict.FAIL),
        (True, True, 1, True, 0.5, Verdict.FAIL),
    ],  # test_retry_budget.py holds what the budget adds
)
def test_after_a_loss(
    wanted: bool, started: bool, num_attempts: int, retry_on_crash: bool, remaining_s: float, expected: Verdict
) -> None:
    verdict = after_loss(
        wanted=wanted,
        started=started,
        blameless=False,
        num_attempts=num_attempts,
        retry_on_crash=retry_on_crash,
        may_spend=lambda: True,
        remaining_s=remaining_s,
        service_s=1.0,
    )
    assert verdict is expected


@pytest.mark.parametrize(("retry_on_crash", "expected"), [(True, Verdict.REDISPATCH), (False, Verdict.FAIL)])
def test_who_ran_beside_a_call_that_had_to_be_stopped_is_sent_elsewhere(
    retry_on_crash: bool, expected: Verdict
) -> None:
    verdict = after_loss(
        wanted=True,
        started=True,
        blameless=True,
        num_attempts=0,
        retry_on_crash=retry_on_crash,
        may_spend=lambda: False,
        remaining_s=0.1,
        service_s=1.0,
    )
    assert verdict is expected
