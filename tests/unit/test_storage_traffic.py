"""Traffic slices: outcomes, buckets, merging, and how far a percentile may be off."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar_storage import traffic
from samovar_storage.records import dumps, loads
from samovar_storage.traffic import PERCENTILE_ERROR, Tally, TrafficSlice, bucket_of, percentile_s

SECONDS = st.floats(min_value=traffic.LOWEST_S, max_value=9_000.0)


def histogram(times_s: list[float]) -> dict[int, int]:
    return traffic.merge_histograms({bucket_of(time_s): 1} for time_s in times_s)


@pytest.mark.parametrize(
    ("status", "outcome"),
    [(200, "ok"), (204, "ok"), (400, "client"), (429, "client"), (499, "cancelled"), (500, "failed"), (502, "failed"),
     (503, "shed"), (504, "late")],
)  # fmt: skip
def test_each_status_is_counted_in_one_field(status: int, outcome: str) -> None:
    assert traffic.outcome_of(status) == outcome
    assert outcome in traffic.OUTCOMES


@given(SECONDS)
def test_a_time_lies_within_its_bucket(time_s: float) -> None:
    low_s, high_s = traffic.bounds_s(bucket_of(time_s))
    assert low_s <= time_s * (1 + 1e-9) and time_s <= high_s * (1 + 1e-9)


def test_times_beyond_the_ends_are_kept_in_the_end_buckets() -> None:
    assert bucket_of(0.0) == bucket_of(-1.0) == 0
    assert bucket_of(1e9) == traffic.NUM_BUCKETS - 1


@given(st.lists(SECONDS, min_size=1, max_size=200), st.floats(min_value=0.0, max_value=1.0))
def test_a_percentile_is_near_the_true_one(times_s: list[float], q: float) -> None:
    estimate = percentile_s(histogram(times_s), q)
    assert estimate is not None
    true = sorted(times_s)[max(0, math.ceil(q * len(times_s) - 1e-9) - 1)]
    assert estimate <= true * (1 + PERCENTILE_ERROR) * (1 + 1e-6)
    assert estimate >= true / (1 + PERCENTILE_ERROR) / (1 + 1e-6)


def test_thirty_percent_more_shows() -> None:
    before = percentile_s(histogram([0.020 + 0.0001 * i for i in range(100)]), 0.5)
    after = percentile_s(histogram([1.3 * (0.020 + 0.0001 * i) for i in range(100)]), 0.5)
    assert before is not None and after is not None and 1.2 < after / before < 1.4


def test_no_calls_have_no_percentile() -> None:
    assert percentile_s({}, 0.5) is None
    assert traffic.merge([]) == Tally() and Tally().num_calls == 0


@given(st.lists(SECONDS, max_size=50), st.lists(SECONDS, max_size=50))
def test_merging_is_adding_the_calls_together(first: list[float], second: list[float]) -> None:
    one = Tally(ok=len(first), failed=1, total=histogram(first), run=histogram(second))
    two = Tally(ok=len(second), shed=2, total=histogram(second))
    both = traffic.merge([one, two])
    assert both == traffic.merge([two, one])
    assert both.total == histogram(first + second) and both.run == histogram(second)
    assert both.num_calls == one.num_calls + two.num_calls == len(first) + len(second) + 3


def test_a_slice_survives_its_encoding() -> None:
    one = TrafficSlice(
        gateway="g", ref="a@1", at_s=1.0, span_s=1.0, calls=Tally(ok=1, total={7: 1}), shadow=Tally(late=2)
    )
    assert loads(dumps(one), TrafficSlice) == one
