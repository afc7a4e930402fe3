"""How much extra work is allowed, and that a crash is only retried on budget."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar_dispatch.retries.retry import Verdict, after_loss
from samovar_dispatch.retries.retry_budget import HEDGE_SHARE, WINDOW_S, Budget


def spent(budget: Budget, tries: int, now_s: float) -> int:
    return sum(budget.spend(now_s) for _ in range(tries))


@pytest.mark.parametrize(("num_calls", "expected"), [(0, 30), (100, 30), (1000, 200)])
def test_a_share_of_the_calls_above_a_floor(num_calls: int, expected: int) -> None:
    budget = Budget(0.2, 3.0)
    for _ in range(num_calls):
        budget.called(5.0)
    assert spent(budget, 500, 5.0) == expected


def test_tokens_age() -> None:
    budget = Budget(0.2)
    for _ in range(100):
        budget.called(0.5)
    assert spent(budget, 5, 9.9) == 5
    assert spent(budget, 5, 10.0) == 0, "the calls are ten seconds old"


def test_what_was_spent_ages_too() -> None:
    budget = Budget(0.0, 1.0)
    assert spent(budget, 20, 0.0) == WINDOW_S
    assert spent(budget, 20, 9.0) == 0
    assert spent(budget, 20, 1000.0) == WINDOW_S


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 2)), max_size=2000))
def test_hedges_stay_within_their_share_of_all_calls(events: list[tuple[bool, float]]) -> None:
    budget, now_s, calls, hedges = Budget(HEDGE_SHARE), 0.0, 0, 0
    for is_call, pause_s in events:
        now_s += pause_s * 0.01
        if is_call:
            budget.called(now_s)
            calls += 1
        else:
            hedges += budget.spend(now_s)
    assert hedges <= HEDGE_SHARE * calls


def test_a_crash_is_not_retried_without_budget() -> None:
    asked: list[bool] = []

    def empty() -> bool:
        asked.append(True)
        return False

    def verdict(started: bool, num_attempts: int) -> Verdict:
        return after_loss(
            wanted=True,
            started=started,
            blameless=False,
            num_attempts=num_attempts,
            retry_on_crash=True,
            may_spend=empty,
            remaining_s=9.0,
            service_s=1.0,
        )

    assert verdict(started=True, num_attempts=1) is Verdict.FAIL
    assert verdict(started=False, num_attempts=0) is Verdict.REDISPATCH, "what never started is no retry"
    assert verdict(started=True, num_attempts=2) is Verdict.FAIL
    assert len(asked) == 1, "only a retry that would be made asks for budget"
