"""Rate limits without a store: the arithmetic, one gateway's budget, and four gateways on a simulated clock."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.errors import DeployRefused, RateLimited
from samovar.spec import Limits
from samovar_dispatch.rates import rate_limits
from samovar_dispatch.rates.gcra import Rate, available, conforms, lease, rate_of, spend, wait_s
from samovar_dispatch.rates.rate_budget import CALM_TICK_S, TICK_S, Budget
from samovar_dispatch.rates.rate_limits import MIN_GAP_S, FunctionRates, RateLimits, function_rates
from support.lease_cases import CASES, Case


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_leases(case: Case) -> None:
    rate = Rate(case.rate_per_s, case.burst, "")
    got = lease(rate, 1000.0 + case.backlog_s, 1000.0, case.charge, case.want)
    assert got.granted == case.granted
    assert got.tat_s - 1000.0 == pytest.approx(case.after_s, abs=1e-6)


@pytest.mark.parametrize(
    ("text", "burst", "per_s", "allowed"),
    [
        ("20/s", None, 20, 20),
        ("20/s", 40, 20, 40),
        ("300/m", None, 5, 5),
        ("1/h", None, 1 / 3600, 1),
        ("100/s", 1, 100, 10),
    ],
)
def test_rates_as_declared(text: str, burst: int | None, per_s: float, allowed: int) -> None:
    rate = rate_of(text, burst)
    assert rate is not None and rate.per_s == pytest.approx(per_s) and rate.burst == allowed


def test_what_is_no_rate() -> None:
    assert rate_of(None, None) is None and rate_of("", 0) is None
    with pytest.raises(DeployRefused):
        rate_of("20 per second", None)


@given(
    per_s=st.floats(0.1, 1000),
    burst=st.integers(1, 200),
    gaps=st.lists(st.floats(0, 5), min_size=1, max_size=200),
)
def test_no_window_holds_more_than_its_burst_and_its_rate(per_s: float, burst: int, gaps: list[float]) -> None:
    rate, tat_s, now_s = Rate(per_s, burst, ""), 0.0, 0.0
    taken: list[float] = []
    for gap_s in gaps:
        now_s += gap_s
        if conforms(rate, tat_s, now_s):
            tat_s = spend(rate, tat_s, now_s, 1)
            taken.append(now_s)
        else:
            assert conforms(rate, tat_s, now_s + wait_s(rate, tat_s, now_s)), "what Retry-After promises holds"
    for i, since_s in enumerate(taken):
        for j in range(i, len(taken)):
            assert j - i + 1 <= burst + per_s * (taken[j] - since_s) + 1e-3


@given(charge=st.floats(-50, 50), want=st.integers(0, 100), backlog_s=st.floats(0, 20), per_s=st.floats(0.5, 100))
def test_a_lease_is_never_more_than_is_there(charge: float, want: int, backlog_s: float, per_s: float) -> None:
    rate = Rate(per_s, 40, "")
    got = lease(rate, backlog_s, 0.0, charge, want)
    before = available(rate, spend(rate, backlog_s, 0.0, charge), 0.0)
    assert 0 <= got.granted <= max(0, math.floor(before + 1e-3)) and got.granted <= want
    assert available(rate, got.tat_s, 0.0) == pytest.approx(before - got.granted, abs=1e-3)


def test_one_of_four_spends_its_fourth_unasked() -> None:
    budget, now_s = Budget(("", "f"), Rate(10, 40, "10/s")), 100.0
    assert passed(budget, now_s, 100, 4) == 10
    assert passed(budget, now_s + 10, 100, 4) == 10, "a burst of a fourth comes back"
    assert sum(passed(budget, now_s + 10 + tenths / 10, 1, 4) for tenths in range(1, 101)) == pytest.approx(25, abs=1)


def test_a_lost_report_is_told_again() -> None:
    budget = Budget(("", "f"), Rate(10, 40, "10/s"))
    passed(budget, 100.0, 6, 4)
    told = budget.report(100.0, 4, TICK_S, may_lease=True)
    assert (told.charge, budget.spent) == (6, 0)
    budget.lost(told)
    assert budget.report(100.01, 4, TICK_S, may_lease=True).charge == 6


def test_after_an_outage_only_what_is_still_missing_is_charged() -> None:
    budget = Budget(("", "f"), Rate(10, 40, "10/s"))
    for second in range(100, 160):
        passed(budget, float(second), 100, 4)
    told = budget.report(160.0, 4, 60.0, may_lease=False)
    assert told.spent > 150 and told.charge < 11 and told.want == 0


def test_calls_during_a_report_are_not_forgotten_by_its_reply() -> None:
    budget = Budget(("", "f"), Rate(10, 40, "10/s"))
    told = budget.report(100.0, 4, TICK_S, may_lease=True)
    passed(budget, 100.0, 3, 4)
    budget.settle(told, 0, 1.0, 100.0, 4)
    assert budget.spent == 3 and budget.tat_s == pytest.approx(101.0 + 3 * 4 / 10)


def passed(budget: Budget, now_s: float, calls: int, num_gateways: int) -> int:
    count = 0
    for _ in range(calls):
        budget.asked += 1
        if budget.may(now_s):
            budget.take(now_s, num_gateways)
            count += 1
    return count


# the shell, without its task --------------------------------------------------------------------------------------


@dataclass
class Clock:
    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_a_call_that_fails_one_limit_takes_from_none() -> None:
    limits = RateLimits(Clock())
    key, declared = Rate(1, 5, "1/s"), FunctionRates(Rate(1, 3, "1/s"), Rate(1, 2, "1/s"))
    for _ in range(2):
        limits.take("k", key, "f", declared)
    refused(limits, "key-and-function", "k", key, "f", declared)
    limits.take("other", None, "f", declared)
    refused(limits, "function", "third", key, "f", declared)
    for _ in range(3):
        limits.take("k", key, "g", None)
    refused(limits, "key", "k", key, "g", None)
    for _ in range(5):
        limits.take("third", key, "g", None)


def refused(limits: RateLimits, kind: str, *call: object) -> RateLimited:
    with pytest.raises(RateLimited) as raised:
        limits.take(*call)  # type: ignore[arg-type]
    assert raised.value.extra["limit"] == kind
    return raised.value


def test_a_refusal_says_when_and_why() -> None:
    clock = Clock()
    limits = RateLimits(clock)
    rate = Rate(0.5, 2, "30/m")
    for _ in range(2):
        limits.take("k", rate, "f", None)
    error = refused(limits, "key", "k", rate, "f", None)
    assert error.retry_after_s == pytest.approx(2.0)
    assert error.extra["policy"] == {"rate": "30/m", "burst": 2, "window_s": 4}
    clock.now_s += 2.0
    limits.take("k", rate, "f", None)


@pytest.mark.parametrize(("num_calls", "wait_s"), [(1, 0.0), (40, 0.05), (100, 3.05), (100_000, 3598.05)])
def test_many_calls_pass_where_one_would_and_the_next_waits_for_them(num_calls: int, wait_s: float) -> None:
    clock, rate = Clock(), Rate(20, 40, "20/s")
    limits = RateLimits(clock)
    limits.take("k", rate, "f", None, num_calls)
    if not wait_s:
        limits.take("k", rate, "f", None)
        return
    error = refused(limits, "key", "k", rate, "f", None)
    assert error.retry_after_s == pytest.approx(wait_s, abs=1e-3), "at most about an hour"
    clock.now_s += wait_s + 1e-3
    limits.take("k", rate, "f", None)


def test_many_calls_are_paid_from_the_lease_first() -> None:
    budget = Budget(("", "f"), Rate(10, 40, "10/s"))
    budget.held = 5
    assert not budget.take(100.0, 1, 3) and (budget.held, budget.spent) == (2, 0)
    budget.take(100.0, 1, 6)
    assert (budget.held, budget.spent) == (0, 4) and budget.tat_s == pytest.approx(100.4)
    assert budget.report(100.0, 1, 0.05, may_lease=True).charge == 4


def test_a_limit_that_changes_holds_from_the_next_call_on() -> None:
    limits = RateLimits(Clock())
    limits.take("k", Rate(1, 1, "1/s"), "f", None)
    refused(limits, "key", "k", Rate(1, 1, "1/s"), "f", None)
    limits.take("k", Rate(1, 3, "1/s"), "f", None)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limits, "MAX_BUDGETS", 50)
    limits = RateLimits(Clock())
    for number in range(500):
        limits.take(f"k{number}", Rate(1, 1, "1/s"), "f", None)
    assert len(limits) == 50


def test_only_functions_with_limits_have_any() -> None:
    assert function_rates(Limits()) is None
    assert function_rates(Limits(rate="5/s")) == FunctionRates(Rate(5, 5, "5/s"), None)
    assert function_rates(Limits(rate_per_key="5/s", burst_per_key=9)) == FunctionRates(None, Rate(5, 9, "5/s"))


# four gateways ----------------------------------------------------------------------------------------------------


@dataclass
class Simulation:
    """Gateways with one budget each, on one clock, over one instant; `load(gateway, t)` calls a second come evenly."""

    rate: Rate
    load: Callable[[int, float], float]
    is_down: Callable[[float], bool] = lambda _: False
    num_gateways: int = 4
    admitted: dict[int, int] = field(default_factory=dict)  # by second
    asked: int = 0

    def run(self, seconds: int) -> int:
        draw, tat_s, step_s = random.Random(7), 0.0, 0.001
        every = range(self.num_gateways)
        budgets = [Budget(("", "f"), self.rate) for _ in every]
        next_s = [draw.uniform(0, TICK_S) for _ in every]
        last_s, debt, away, rejoined_s = [0.0] * 4, [0.0] * 4, [False] * 4, [0.0] * 4
        for step in range(int(seconds / step_s)):
            now_s = step * step_s
            for gateway, budget in enumerate(budgets):
                debt[gateway] += self.load(gateway, now_s) * step_s
                while debt[gateway] >= 1:
                    debt[gateway] -= 1
                    if self._call(budget, now_s):
                        next_s[gateway] = min(next_s[gateway], last_s[gateway] + MIN_GAP_S)
                if now_s < next_s[gateway]:
                    continue
                may_lease = not away[gateway] and now_s >= rejoined_s[gateway]
                told = budget.report(now_s, self.num_gateways, now_s - last_s[gateway], may_lease)
                tick_s = CALM_TICK_S if budget.calm else TICK_S
                last_s[gateway], next_s[gateway] = now_s, now_s + tick_s * draw.uniform(0.75, 1.25)
                if self.is_down(now_s):
                    budget.lost(told)
                    away[gateway] = True
                    continue
                if away[gateway]:
                    away[gateway], rejoined_s[gateway] = False, now_s + 1.0
                got = lease(self.rate, tat_s, now_s, told.charge, told.want)
                tat_s = got.tat_s
                if may_lease:
                    budget.settle(told, got.granted, tat_s - now_s, now_s, self.num_gateways)
                else:
                    budget.rejoin(tat_s - now_s, now_s)
        return sum(self.admitted.values())

    def _call(self, budget: Budget, now_s: float) -> bool:
        self.asked += 1
        budget.asked += 1
        if not budget.may(now_s):
            return False
        self.admitted[int(now_s)] = self.admitted.get(int(now_s), 0) + 1
        return budget.take(now_s, self.num_gateways)


LOADS: dict[str, Callable[[int, float], float]] = {
    "even, twice too much": lambda _, t: 100.0,
    "even, a little too much": lambda _, t: 60.0,
    "one gateway, then another": lambda gateway, t: 400.0 if gateway == (0 if t < 5 else 1) else 0.0,
    "two gateways, one of them busier": lambda gateway, t: (300.0, 60.0, 0.0, 0.0)[gateway],
    "in turn, half a second each": lambda gateway, t: 400.0 if gateway == int(2 * t) % 4 else 0.0,
}


@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
@pytest.mark.parametrize("burst", [20, 200])
def test_four_gateways_admit_what_one_would(load: Callable[[int, float], float], burst: int) -> None:
    simulation = Simulation(Rate(200, burst, "200/s"), load)
    admitted = simulation.run(10)
    ideal = min(simulation.asked, burst + 200 * 10)
    assert abs(admitted / ideal - 1) <= 0.05, (admitted, ideal)


@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
def test_nobody_below_the_limit_is_refused(load: Callable[[int, float], float]) -> None:
    simulation = Simulation(Rate(600, 600, "600/s"), load)
    assert simulation.run(10) >= 0.99 * simulation.asked


def test_without_the_store_each_keeps_its_share_and_comes_back_without_a_burst() -> None:
    simulation = Simulation(Rate(200, 200, "200/s"), LOADS["even, twice too much"], lambda t: 5 < t < 12)
    simulation.run(20)
    later = [count for second, count in simulation.admitted.items() if second >= 2]
    assert max(later) <= 200 * 1.05 and min(later) >= 200 * 0.8
    assert sum(later) == pytest.approx(200 * 18, rel=0.05)


def test_a_look_says_how_many_may_pass_and_counts_nothing() -> None:
    now_s = [100.0]
    limits = RateLimits(lambda: now_s[0])
    declared = FunctionRates(Rate(4.0, 3, "4/s"), None)
    assert limits.look("k", None, "f", None) == (None, 0.0)
    assert limits.look("k", Rate(1.0, 2, "1/s"), "f", declared) == (2, 0.0), "the strictest limit counts"
    assert limits.look("k", None, "f", declared) == (3, 0.0)
    for left in (2, 1, 0):
        limits.take("k", None, "f", declared)
        assert limits.look("k", None, "f", declared)[0] == left
    room, wait_s_ = limits.look("k", None, "f", declared)
    assert room == 0 and wait_s_ == pytest.approx(0.25)
    with pytest.raises(RateLimited):
        limits.take("k", None, "f", declared)
    now_s[0] += 0.25
    assert limits.look("k", None, "f", declared) == (1, 0.0)
