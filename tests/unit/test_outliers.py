"""Which instance does worse than its peers, and for how long it is left alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar_dispatch.health.outliers import (
    LONGEST_S,
    MAX_IN_A_ROW,
    MIN_CALLS,
    MIN_GAP,
    MIN_PEERS,
    Health,
    left_alone_s,
    may_eject,
    outliers,
)

GOOD, BAD = (MIN_CALLS, 0), (MIN_CALLS // 2, MIN_CALLS // 2)


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([GOOD] * 5 + [BAD], [5]),
        ([GOOD] * 3 + [BAD], []),  # too few peers to say what is usual
        ([GOOD] * 4 + [BAD, (1, 9)], [4]),  # the last one had too few calls to be judged, or to judge by
        ([BAD] * 6, []),  # all alike: the version is at fault
        ([(1000, 0)] * 5 + [(990, 10)], []),  # far off in deviations, and not in calls
        ([GOOD] * 8 + [(80, 20), (20, 80)], [9]),
    ],
)
def test_who_is_an_outlier(calls: list[tuple[int, int]], expected: list[int]) -> None:
    assert outliers(dict(enumerate(calls))) == expected


COUNTS = st.tuples(st.integers(0, 300), st.integers(0, 300))


@given(st.dictionaries(st.integers(), COUNTS, max_size=12))
def test_an_outlier_is_well_below_the_mean_and_never_judged_on_little(calls: dict[int, tuple[int, int]]) -> None:
    found = outliers(calls)
    shares = {one: ok / (ok + failed) for one, (ok, failed) in calls.items() if ok + failed >= MIN_CALLS}
    mean = sum(shares.values()) / len(shares) if shares else 0.0
    assert not found or len(shares) >= MIN_PEERS
    assert all(shares[one] <= mean - MIN_GAP + 1e-9 for one in found)
    assert len(found) < max(1, len(shares))


@given(st.integers(0, 40))
def test_half_of_the_instances_and_one_at_least_always_stay(num_members: int) -> None:
    num_serving = num_members
    while may_eject(num_serving, num_members):
        num_serving -= 1
    assert num_serving == num_members or num_serving >= max(1, num_members / 2)
    assert num_members < 2 or num_serving < num_members


def test_failures_in_a_row_count_until_an_answer() -> None:
    health = Health()
    for at_s in range(4):
        health.failed(at_s, at_s + 0.5)
    assert health.in_a_row == 4
    health.answered()
    assert health.in_a_row == 0


def test_batch_mates_that_fail_together_count_once() -> None:
    health = Health()
    for _ in range(16):
        health.failed(1.0, 2.0)
    assert health.in_a_row == 1
    for number in range(2, MAX_IN_A_ROW + 1):
        health.failed(2.0 * number, 2.0 * number + 1)
        assert health.in_a_row == number


def test_it_is_left_alone_longer_each_time_up_to_a_cap() -> None:
    health = Health()
    for expected_s in (10, 20, 40, 80, 160, 300, 300):
        assert health.eject(1000.0, 10.0) == expected_s
        health.take_back(1000.0)
    assert health.eject(1001.0, 10.0) == LONGEST_S
    health.take_back(2000.0)
    assert health.eject(2001.0 + LONGEST_S, 10.0) == 10, "it has done well for long enough"


@given(st.integers(1, 1000), st.floats(0.01, 1000))
def test_never_longer_than_the_cap(num: int, first_s: float) -> None:
    assert min(first_s, LONGEST_S) <= left_alone_s(num, first_s) <= LONGEST_S
