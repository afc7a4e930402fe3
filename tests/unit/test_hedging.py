"""When a copy of a call is sent, and where it may go."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar_dispatch.retries.hedging import MAX_SAMPLES, MIN_SAMPLES, Hedging, Percentile, hedging_of
from samovar_dispatch.slots import Seat, SeatTable
from support.gateway import manifest


def test_a_fixed_time_needs_no_samples() -> None:
    assert Hedging("50ms").after_s == pytest.approx(0.05)


def test_a_percentile_is_unknown_until_enough_calls_were_seen() -> None:
    hedging = Hedging("p95")
    for number in range(MIN_SAMPLES - 1):
        hedging.answered(number / 1000)
        assert hedging.after_s is None
    hedging.answered(0.0995)
    assert hedging.after_s == pytest.approx(0.094, abs=0.001)


@given(st.lists(st.floats(0, 10), min_size=MIN_SAMPLES, max_size=2 * MAX_SAMPLES), st.integers(1, 99))
def test_a_percentile_is_between_that_of_now_and_of_the_last_look(samples_s: list[float], percent: int) -> None:
    tracker, looked_at = Percentile(percent / 100), []
    for sample_s in samples_s:
        before = tracker.value_s
        tracker.add(sample_s)
        looked_at.append(sample_s)
        if tracker.value_s != before:
            newest = sorted(looked_at[-MAX_SAMPLES:])
            assert tracker.value_s == newest[int(percent / 100 * (len(newest) - 1))]
    assert tracker.value_s is not None


@pytest.mark.parametrize(
    ("more", "hedged"),
    [
        ({}, False),
        ({"hedge_after": "p95"}, True),
        ({"hedge_after": "p95", "retry_on_crash": False}, False),
        ({"hedge_after": "p95", "handler": "generator"}, False),
        ({"hedge_after": "p95", "handler": "async_generator"}, False),
    ],
)
def test_only_what_may_run_twice_and_answers_at_once_is_hedged(more: dict[str, Any], hedged: bool) -> None:
    assert (hedging_of(manifest(**more)) is not None) is hedged


def test_a_copy_goes_to_another_instance_with_a_free_slot_or_nowhere() -> None:
    table: SeatTable[str] = SeatTable()
    first, second = Seat("first", 1), Seat("second", 1)
    table.open(first)
    assert table.take() is first
    assert table.take_beside(first) is None
    table.open(second)
    assert table.take_beside(first) is second
    assert table.take_beside(first) is None, "its only slot is taken, and a copy is never given ahead"
    table.give_back(second)
    assert table.take() is second
