"""When drafts pay: what is chosen by rates and step times, and that a wrong estimate costs next to nothing."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samovar_instance.engines.generation.profit import Candidate, Profit, StepCosts

Cost = Callable[[int], float]


def bound_by_memory(rows: int) -> float:
    return 1.0 + 0.01 * rows


def bound_by_products(rows: int) -> float:
    return 0.2 + 0.8 * rows


def core(rows: int) -> float:
    """As measured on one core: from 5 to 15 rows are as slow as 16."""
    return {1: 1.0, 2: 1.3, 3: 1.45, 4: 1.7}.get(rows, 2.2 * max(1.0, rows / 16))


def measured(cost: Cost, *rows: int) -> Profit:
    profit = Profit()
    for each in rows:
        profit.costs.note(each, cost(each))
    return profit


@pytest.mark.parametrize(
    ("cost", "num_sequences", "rates", "expected"),
    [
        (bound_by_memory, 1, [0.9], [8]),
        (bound_by_memory, 1, [0.05], [1]),
        (bound_by_products, 1, [0.8], [0]),
        (core, 1, [0.95], [8]),
        (core, 1, [0.6], [2]),
        (core, 1, [0.1], [0]),
        (core, 32, [0.5] * 32, [0] * 32),
        (bound_by_memory, 8, [0.9, 0.01], [8, 0]),
    ],
    ids=[
        "a row more costs nothing: as many as there may be",
        "even for a small chance",
        "a row more costs what a token does: none",
        "copying pays for the step from 4 to 16 rows",
        "of a middling sequence the first two",
        "it is seldom right",
        "a full batch has no time to give away",
        "each sequence by its own rate",
    ],
)
def test_counts(cost: Cost, num_sequences: int, rates: list[float], expected: list[int]) -> None:
    profit = measured(cost, *range(1, 65))
    assert profit.counts(num_sequences, [Candidate(rate, 9, 8) for rate in rates]) == expected


def test_nothing_is_drafted_before_a_step_without_was_measured() -> None:
    profit = Profit()
    assert profit.counts(1, [Candidate(1.0, 9, 8)]) == [0]
    profit.ran(1, 0, 1, 1.0)
    assert profit.counts(1, [Candidate(1.0, 9, 8)]) == [8]


def test_now_and_then_a_step_without_keeps_the_comparison_fresh() -> None:
    profit = measured(bound_by_memory, 1)
    told = []
    for _ in range(60):
        (count,) = profit.counts(1, [Candidate(1.0, 9, 4)])
        profit.ran(1, count, 1 + count, bound_by_memory(1 + count))
        told.append(count)
    assert told.count(0) == 2


def test_making_drafts_takes_time_too() -> None:
    profit = measured(bound_by_memory, *range(1, 9))
    profit.note_drafting(0.1)
    (few,) = profit.counts(1, [Candidate(0.7, 9, 8)])
    assert 0 < few < 8
    for _ in range(30):
        profit.note_drafting(1.5)
    assert profit.counts(1, [Candidate(0.7, 9, 8)]) == [0]


def test_steps_that_lost_too_much_end_it_until_the_account_has_recovered() -> None:
    profit = measured(bound_by_memory, 1)
    profit.ran(1, 4, 1, 3.0)
    assert profit.counts(1, [Candidate(0.9, 9, 4)]) == [0]
    for _ in range(400):
        profit.ran(1, 0, 1, 1.0)
    assert profit.counts(1, [Candidate(0.9, 9, 4)]) != [0]


def test_who_does_not_seem_worth_it_is_tried_again_in_the_end() -> None:
    profit = measured(core, 1, 2, 3)
    num_tried = 0
    for _ in range(300):
        (count,) = profit.counts(1, [Candidate(0.05, 0, 8)])
        num_tried += count > 0
        profit.ran(1, count, 1, core(1 + count))
    assert 3 < num_tried < 20


def test_costs_lie_on_a_line_between_what_is_known() -> None:
    costs = StepCosts()
    costs.note(1, 1.0)
    assert costs.seconds(3) == pytest.approx(1.3 / 1.1)
    costs.note(5, 3.0)
    assert [costs.seconds(rows) for rows in (1, 2, 5)] == [1.0, 1.5, 3.0]
    assert costs.seconds(15) == pytest.approx(3.0 * 2.5 / 1.5)
    costs.note(1, 100.0)
    assert costs.seconds(1) < 1.3, "one slow step is no news"


def simulate(cost: Cost, num_sequences: int, chances: list[float], seed: int, num_steps: int = 3000) -> float:
    """Return tokens a second with drafts over tokens a second without, where the account starts empty.

    chances: of a draft to be right, one after another for as long as there are steps.
    """
    profit, noise = Profit(), random.Random(seed)
    records = [profit.record() for _ in range(num_sequences)]
    tokens = seconds = 0.0
    for step in range(num_steps):
        chance = chances[step * len(chances) // num_steps]
        counts = profit.counts(num_sequences, [Candidate(one.rate, one.num_tried, 8) for one in records])
        num_right = []
        for record, count in zip(records, counts, strict=True):
            right = next((nth for nth in range(count) if noise.random() >= chance), count)
            num_right.append(right)
            if count:
                profit.judged(record, right, count)
        took_s = cost(num_sequences + sum(counts)) * noise.uniform(0.97, 1.03)
        profit.ran(num_sequences, sum(counts), num_sequences + sum(num_right), took_s)
        tokens, seconds = tokens + num_sequences + sum(num_right), seconds + took_s
    return (tokens / seconds) / (num_sequences / cost(num_sequences))


@settings(max_examples=30)
@given(
    st.sampled_from([bound_by_memory, bound_by_products, core]),
    st.sampled_from([1, 3, 32]),
    st.lists(st.floats(0, 1), min_size=1, max_size=3),
    st.integers(0, 99),
)
def test_at_worst_it_costs_three_percent(cost: Cost, num_sequences: int, chances: list[float], seed: int) -> None:
    assert simulate(cost, num_sequences, chances, seed, 600) >= 0.97


def test_copying_is_found_out_and_worth_it() -> None:
    assert simulate(core, 1, [0.95], 1) > 1.8
    assert simulate(core, 1, [0.0, 0.95], 1) > 1.3, "after a long time without a right draft, too"
