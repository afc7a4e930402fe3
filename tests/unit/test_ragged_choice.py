"""Which items of different lengths make a batch."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.spec import BatchSpec
from samovar_instance.batching import Decision, LastBatch, decide
from samovar_instance.ragged import choose

NOW_S = 100.0
SPEC = BatchSpec(max_size=4, max_wait_ms=10, max_tokens=1000, max_padding=32)


@dataclass
class Item:
    length: int
    deadline_s: float = NOW_S + 60
    job: object = None
    cost: float = 1.0
    received_at_s: float = NOW_S


def lengths(*values: int) -> list[Item]:
    return [Item(value) for value in values]


URGENT_S = NOW_S + 0.5


@pytest.mark.parametrize(
    ("waiting", "spec", "expected"),
    [
        (lengths(20), SPEC, [0]),
        (lengths(20, 200, 30, 210, 25), SPEC, [0, 2, 4]),
        (lengths(200, 20, 210, 30), SPEC, [0, 2]),
        (lengths(400, 400, 400), SPEC, [0, 1]),
        (lengths(10, 10, 10, 10, 10, 10), SPEC, [0, 1, 2, 3]),
        (lengths(100, 101, 130, 130, 131, 132), SPEC, [0, 2, 3, 4]),
        (lengths(2000), SPEC, [0]),
        ([Item(200), Item(20, URGENT_S), Item(20)], SPEC, [0, 1]),
        ([Item(20), Item(999, URGENT_S), Item(20)], SPEC, [0, 2]),
        ([Item(400), Item(20, URGENT_S), Item(20, URGENT_S - 0.1)], SPEC, [0, 2]),
        ([Item(20), Item(200, job="j")], SPEC, [0]),
        ([Item(20), Item(200), Item(20, job="j")], SPEC, [0]),
        ([Item(20), Item(30, job="j"), Item(200, job="k")], SPEC, [0, 1]),
        ([Item(200, job="j"), Item(20, job="k"), Item(190, job="l")], SPEC, [0, 2]),
        ([Item(5, cost=6), Item(5, cost=5), Item(5, cost=4)], BatchSpec(max_cost=10, max_tokens=99), [0, 2]),
        (lengths(0, 0, 0), SPEC, [0, 1, 2]),
    ],
    ids=[
        "one",
        "the oldest and those like it",
        "the oldest may be a long one",
        "no more tokens than allowed",
        "no more items than allowed",
        "of two groups the one with less to pad and more to do",
        "one item always fits",
        "a deadline is worth padding",
        "but no batch that is too big",
        "of two deadlines the nearer one",
        "a job is no reason to pad either",
        "nor does it take a place while calls wait",
        "a job takes the room that calls leave",
        "jobs alone are items like any other",
        "by cost, too",
        "without tokens",
    ],
)
def test_which_items(waiting: list[Item], spec: BatchSpec, expected: list[int]) -> None:
    assert choose(waiting, spec, pressing_s=NOW_S + 1) == expected


@pytest.mark.parametrize(
    ("waiting", "last", "expected"),
    [
        (lengths(20, 200), LastBatch(), Decision([0])),
        (lengths(20, 200), LastBatch(2, NOW_S), Decision([0])),
        (lengths(20, 21), LastBatch(4, NOW_S), Decision([], NOW_S + 0.01)),
        (lengths(400, 400), LastBatch(4, NOW_S), Decision([0, 1])),
        ([Item(20), Item(200, NOW_S + 1)], LastBatch(2, NOW_S, took_s=1.0), Decision([0, 1])),
        ([], LastBatch(), Decision()),
    ],
    ids=[
        "an idle model starts with what is alike",
        "as many wait as last time",
        "fewer than last time: wait for the others",
        "a third would not fit: full",
        "the next batch would come too late",
        "nothing waits",
    ],
)
def test_when(waiting: list[Item], last: LastBatch, expected: Decision) -> None:
    decision = decide(NOW_S, waiting, SPEC, last)
    assert list(decision.take) == list(expected.take)
    assert decision.wait_until_s == pytest.approx(expected.wait_until_s)


specs = st.builds(
    BatchSpec,
    max_size=st.integers(1, 8),
    max_cost=st.none() | st.floats(1, 20),
    max_tokens=st.integers(1, 2000),
    max_padding=st.integers(0, 64),
)
calls = st.lists(
    st.builds(Item, st.integers(0, 300), deadline_s=st.floats(NOW_S, NOW_S + 2), cost=st.floats(0, 10)), max_size=20
)
jobs = calls.map(lambda items: [replace(item, job="j") for item in items])


@given(calls, jobs, specs, st.floats(NOW_S, NOW_S + 1))
def test_promises(calls: list[Item], jobs: list[Item], spec: BatchSpec, pressing_s: float) -> None:
    waiting = calls + jobs
    if not waiting:
        return
    places = choose(waiting, spec, pressing_s)
    batch = [waiting[place] for place in places]
    assert places == sorted(set(places)) and places[0] == 0, "the oldest is in every batch"
    longest = max(item.length for item in batch)
    assert spec.max_tokens is not None
    if len(batch) > 1:
        assert len(batch) <= spec.max_size and longest * len(batch) <= spec.max_tokens
        assert spec.max_cost is None or sum(item.cost for item in batch) <= spec.max_cost + 1e-9
    if not any(item.deadline_s < pressing_s for item in batch):
        assert all(longest - item.length <= spec.max_padding for item in batch)
    if any(item.job is not None for item in batch):
        assert set(range(len(calls))) <= set(places), "no job before a call"


@given(calls.filter(bool), specs)
def test_all_are_served_in_as_many_batches_as_there_are_items(calls: list[Item], spec: BatchSpec) -> None:
    waiting = list(calls)
    for _ in calls:
        taken = set(choose(waiting, spec, NOW_S))
        waiting = [item for place, item in enumerate(waiting) if place not in taken]
        if not waiting:
            break
    assert not waiting
