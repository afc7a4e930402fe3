"""The canary's verdict: hardly ever against one that is as good, soon against one that is not."""

from __future__ import annotations

import random
from math import comb, exp

import pytest

from samovar_pool.verdict import ALPHA_ERRORS, ALPHA_LATENCY, Evidence, Side, _log_e_values, judge, side_of, weigh
from samovar_storage.traffic import Tally, bucket_of

BAKE_S = 60.0


class World:
    """Calls of both versions, second by second. errors: rates; slower: the canary's times by this factor."""

    def __init__(self, seed: int, calls_s: int = 200, percent: float = 10.0) -> None:
        self._random = random.Random(seed)
        self._calls_s, self._share = calls_s, percent / 100

    def second(self, errors: tuple[float, float], slower: float, spread: float = 0.25) -> tuple[Side, Side]:
        """Return the canary's and the stable version's side of one more second."""
        num_canary = sum(self._random.random() < self._share for _ in range(self._calls_s))
        canary = self._side(num_canary, errors[0], slower, spread)
        return canary, self._side(self._calls_s - num_canary, errors[1], 1.0, spread)

    def _side(self, num_calls: int, error_rate: float, slower: float, spread: float) -> Side:
        bad = sum(self._random.random() < error_rate for _ in range(num_calls))
        times = [0.02 * slower * self._random.lognormvariate(0.0, spread) for _ in range(num_calls - bad)]
        latency: dict[int, float] = {}
        for time_s in times:
            latency[bucket_of(time_s)] = latency.get(bucket_of(time_s), 0) + 1
        return Side(num_calls, bad, latency)


def rolled_back_s(
    world: World, errors: tuple[float, float] = (0.0, 0.0), slower: float = 1.0, seconds: int = 60
) -> int | None:
    """Return the second in which the canary was rolled back, None if it was not."""
    evidence = Evidence()
    for second in range(1, seconds + 1):
        evidence = weigh(evidence, *world.second(errors, slower))
        if judge(evidence, second, 1e9).action == "rollback":
            return second
    return None


@pytest.mark.parametrize("percent", [5.0, 50.0])
def test_the_mean_of_an_e_value_is_one_at_most_for_an_equal_canary(percent: float) -> None:
    # exactly: summed over every outcome with its probability
    canary, stable, bad = 10, round(10 * (100 - percent) / percent), 4
    for odds in (1.5, 8.0):
        outcomes = range(max(0, bad - stable), min(bad, canary) + 1)
        chances = [comb(canary, hit) * comb(stable, bad - hit) / comb(canary + stable, bad) for hit in outcomes]
        exact = [exp(_log_e_values(canary, stable, hit, bad - hit, (odds,), 99.0)[0]) for hit in outcomes]
        capped = [exp(_log_e_values(canary, stable, hit, bad - hit, (odds,), 0.7)[0]) for hit in outcomes]
        assert sum(c * e for c, e in zip(chances, exact, strict=True)) == pytest.approx(1.0)
        assert sum(c * e for c, e in zip(chances, capped, strict=True)) <= 1.0 + 1e-9


def test_clean_canaries_are_left_alone() -> None:
    # 40 canaries over two minutes each, looked at every second; the bound is 0.01 of them
    found = [rolled_back_s(World(seed, 100), errors=(0.01, 0.01), seconds=120) for seed in range(40)]
    assert ALPHA_ERRORS + ALPHA_LATENCY <= 0.01
    assert sum(second is not None for second in found) <= 1, found


def test_slower_within_the_margin_is_not_worse() -> None:
    assert [rolled_back_s(World(seed), slower=1.10) for seed in range(10)] == [None] * 10


@pytest.mark.parametrize(
    ("errors", "slower", "calls_s"),
    [((0.05, 0.0), 1.0, 200), ((0.05, 0.0), 1.0, 100), ((0.0, 0.0), 1.3, 200), ((0.0, 0.0), 1.3, 100)],
)
def test_planted_regressions_are_found_within_a_minute(
    errors: tuple[float, float], slower: float, calls_s: int
) -> None:
    found = [rolled_back_s(World(seed, calls_s), errors, slower) for seed in range(20)]
    assert sum(second is None for second in found) <= 1, found


def test_one_bad_second_is_no_regression() -> None:
    world, evidence = World(3), Evidence()
    for second in range(1, 41):
        canary, stable = world.second((1.0, 0.0) if second == 20 else (0.0, 0.0), 3.0 if second == 30 else 1.0)
        evidence = weigh(evidence, canary, stable)
        assert judge(evidence, second, BAKE_S).action == "wait", second


def test_a_wholly_broken_canary_goes_in_seconds() -> None:
    found = rolled_back_s(World(1), errors=(1.0, 0.0))
    assert found is not None and found <= 4
    evidence = weigh(Evidence(), *World(1).second((1.0, 0.0), 1.0))
    unbootable = judge(evidence, 1.0, BAKE_S, num_boot_failures=2, boot_failure="OSError: no such model")
    assert unbootable.rule == "boot" and unbootable.reason.endswith("2 boots failed in a row: OSError: no such model")


def test_promotion_needs_time_calls_and_no_doubt() -> None:
    world, evidence = World(5), Evidence()
    for _ in range(10):
        evidence = weigh(evidence, *world.second((0.0, 0.0), 1.0))
    assert judge(evidence, 59.0, BAKE_S).rule == "baking"
    verdict = judge(evidence, 61.0, BAKE_S)
    assert (verdict.action, verdict.rule) == ("promote", "baked")
    assert verdict.inputs["canary_calls"] == evidence.canary.calls and verdict.inputs["canary_p50_ms"] > 15
    few = weigh(Evidence(), Side(5), Side(50))
    assert judge(few, 61.0, BAKE_S).rule == "few calls"
    doubtful = Evidence(errors=(4.0,) * 6, canary=Side(500), stable=Side(500))
    assert judge(doubtful, 61.0, BAKE_S).rule == "doubt"


def test_what_counts_as_bad() -> None:
    tally = Tally(ok=5, client=3, failed=1, late=1, shed=1, cancelled=9, fallback=1, cached=7, total={10: 5})
    assert side_of([tally, tally]) == Side(18, 8, {10: 10})


def test_seconds_without_one_side_say_nothing() -> None:
    evidence = weigh(weigh(Evidence(), Side(0), Side(100, 50)), Side(10, 10), Side(0))
    assert evidence.log_errors == pytest.approx(0.0) and evidence.canary.calls == 10
