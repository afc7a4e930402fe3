"""When calls are late and when to look again."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar_instance.deadlines import CLAIM_RACE_S, next_look_s, overrun_s

NOW_S = 100.0


@dataclass
class Timed:
    deadline_s: float
    started_at_s: float = 0.0
    has_heard: bool = False


LATE, LATER = Timed(NOW_S - 3, 1), Timed(NOW_S - 1, 1)
HEARD, HEARD_LATER = Timed(NOW_S - 3, 1, has_heard=True), Timed(NOW_S - 1, 1, has_heard=True)
IN_TIME, WAITING = Timed(NOW_S + 5, 1), Timed(NOW_S - 9)


@pytest.mark.parametrize(
    ("calls", "as_one", "apart"),
    [
        ([], 0, 0),
        ([IN_TIME], 0, 0),
        ([WAITING], 0, 0),
        ([LATE], 3, 3),
        ([LATE, LATER, WAITING], 1, 3),
        ([LATE, IN_TIME], 0, 3),
        ([HEARD, IN_TIME], 0, 0),
        ([HEARD, HEARD_LATER], 1, 1),
        ([HEARD, LATER, IN_TIME], 0, 1),
    ],
)
def test_overrun(calls: list[Timed], as_one: float, apart: float) -> None:
    assert overrun_s(calls, NOW_S, runs_as_one=True) == as_one
    assert overrun_s(calls, NOW_S, runs_as_one=False) == apart


@given(st.lists(st.builds(Timed, st.floats(0, 200), st.sampled_from([0.0, 1.0])), max_size=10), st.floats(0, 10))
def test_the_next_look_is_never_too_late_and_never_now(calls: list[Timed], grace_s: float) -> None:
    look_s = next_look_s(calls, NOW_S, grace_s)
    assert look_s > NOW_S
    for call in calls:
        event_s = call.deadline_s if call.deadline_s > NOW_S else call.deadline_s + grace_s
        assert look_s <= max(event_s, NOW_S + CLAIM_RACE_S)
