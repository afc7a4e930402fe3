"""What goes into a batch, and when."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.spec import BatchSpec
from samovar_instance.batching import Decision, LastBatch, decide

NOW_S = 100.0
SPEC = BatchSpec(max_size=4, max_wait_ms=10, max_cost=10)


@dataclass
class Item:
    received_at_s: float = NOW_S
    deadline_s: float = NOW_S + 60
    cost: float = 1.0
    length: int = 0
    job: object = None


IDLE = LastBatch()
JUST_RAN_3 = LastBatch(3, NOW_S - 0.001)


@pytest.mark.parametrize(
    ("waiting", "last", "expected"),
    [
        ([], IDLE, Decision()),
        ([Item()], IDLE, Decision(range(1))),
        ([Item()] * 3, IDLE, Decision(range(3))),
        ([Item()] * 9, IDLE, Decision(range(4))),
        ([Item()], LastBatch(1, NOW_S), Decision(range(1))),
        ([Item()] * 3, JUST_RAN_3, Decision(range(3))),
        ([Item()] * 2, JUST_RAN_3, Decision((), NOW_S + 0.009)),
        ([Item(NOW_S - 0.005)] * 2, JUST_RAN_3, Decision((), NOW_S + 0.005)),
        ([Item(NOW_S - 0.02)] * 2, JUST_RAN_3, Decision(range(2))),
        ([Item()] * 2, LastBatch(3, NOW_S - 0.01), Decision(range(2))),
        ([Item(), Item(deadline_s=NOW_S + 0.002)], JUST_RAN_3, Decision((), NOW_S + 0.002)),
        ([Item(cost=6), Item(cost=5)], JUST_RAN_3, Decision(range(1))),
        ([Item(cost=6), Item(cost=4)], JUST_RAN_3, Decision((), NOW_S + 0.009)),
        ([Item(cost=99)], IDLE, Decision(range(1))),
    ],
    ids=[
        "nothing waits",
        "an idle model starts at once",
        "with all that is there",
        "but not more than fit",
        "one caller never waits for a second",
        "as many as last time: no wait",
        "fewer than last time: wait for the others",
        "no longer than max_wait_ms for the first",
        "the first has waited long enough",
        "the others did not come back",
        "never beyond a deadline",
        "full by cost",
        "not full by cost",
        "one item always fits",
    ],
)
def test_decisions(waiting: list[Item], last: LastBatch, expected: Decision) -> None:
    decision = decide(NOW_S, waiting, SPEC, last)
    assert list(decision.take) == list(expected.take)
    assert decision.wait_until_s == pytest.approx(expected.wait_until_s)


items = st.lists(
    st.builds(
        Item,
        received_at_s=st.floats(NOW_S - 1, NOW_S),
        deadline_s=st.floats(NOW_S + 0.001, NOW_S + 1),
        cost=st.floats(0, 20),
    ),
    max_size=20,
).map(lambda found: sorted(found, key=lambda item: item.received_at_s))
specs = st.builds(
    BatchSpec, max_size=st.integers(1, 8), max_wait_ms=st.floats(0, 50), max_cost=st.none() | st.floats(1, 50)
)
lasts = st.builds(LastBatch, size=st.integers(0, 8), ended_at_s=st.floats(NOW_S - 1, NOW_S))


@given(items, specs, lasts)
def test_a_batch_keeps_its_limits_and_a_wait_its_promise(waiting: list[Item], spec: BatchSpec, last: LastBatch) -> None:
    decision = decide(NOW_S, waiting, spec, last)
    assert list(decision.take) == list(range(len(decision.take))), "the oldest"
    batch = waiting[: len(decision.take)]
    assert len(batch) <= spec.max_size
    assert spec.max_cost is None or len(batch) <= 1 or sum(item.cost for item in batch) <= spec.max_cost + 1e-9
    if waiting and not decision.take:
        assert decision.wait_until_s is not None
        assert NOW_S < decision.wait_until_s <= waiting[0].received_at_s + spec.max_wait_ms / 1000 + 1e-9
        assert decision.wait_until_s <= min(item.deadline_s for item in waiting)
        later = decide(decision.wait_until_s, waiting, spec, last)
        assert later.take, "after the wait it starts"


@given(items.filter(bool), specs)
def test_an_idle_model_never_waits(waiting: list[Item], spec: BatchSpec) -> None:
    assert decide(NOW_S, waiting, spec, LastBatch()).take
