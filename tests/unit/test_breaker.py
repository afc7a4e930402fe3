"""The circuit breaker as a state machine: tables, and whatever happens in any order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.policies import Breaker as Policy
from samovar_dispatch.health.breaker import (
    CRASH_LOOP,
    CRASH_MEMORY_S,
    ERROR_RATE,
    JITTER,
    LOAD_FAILED,
    PROBE_FAILED,
    SIDE_BY_SIDE_S,
    SLOW_CALLS,
    Breaker,
    State,
)
from samovar_dispatch.health.window import FAILED, SLOW, Window

POLICY = Policy(min_calls=4, window_calls=8, open_s=2.0, max_open_s=8.0, probes=2)


def breaker(policy: Policy = POLICY, chance: float = 0.0) -> Breaker:
    return Breaker(policy, lambda: chance)


def opened(policy: Policy = POLICY, chance: float = 0.0) -> Breaker:
    """Return a breaker that opened at 0 s."""
    one = breaker(policy, chance)
    for _ in range(policy.min_calls):
        one.record(FAILED, 0, 0.0)
    assert one.state is State.OPEN
    return one


@pytest.mark.parametrize(
    ("flags", "state", "reason"),
    [
        ([0, 0, FAILED], State.CLOSED, ""),  # too few calls
        ([FAILED] * 3, State.CLOSED, ""),
        ([0, 0, 0, FAILED], State.CLOSED, ""),
        ([0, 0, FAILED, FAILED], State.OPEN, ERROR_RATE),
        ([FAILED, FAILED, 0, 0], State.CLOSED, ""),  # a good call never opens it
        ([FAILED, FAILED, 0, 0, FAILED], State.OPEN, ERROR_RATE),
        ([SLOW, SLOW, SLOW, 0], State.CLOSED, ""),
        ([SLOW, SLOW, SLOW, SLOW], State.OPEN, SLOW_CALLS),
        ([FAILED | SLOW] * 4, State.OPEN, ERROR_RATE),
        ([FAILED, FAILED, FAILED] + [0] * 8 + [FAILED] * 3, State.CLOSED, ""),  # the first three left the window
    ],
)
def test_what_opens_it(flags: list[int], state: State, reason: str) -> None:
    one = breaker(Policy(min_calls=4, window_calls=8, slow_call_s=1.0))
    for flag in flags:
        one.record(flag, 0, 0.0)
    assert (one.state, one.reason) == (state, reason)


def test_slow_calls_do_not_count_without_a_threshold() -> None:
    one = breaker()
    for _ in range(8):
        one.record(SLOW, 0, 0.0)
    assert one.state is State.CLOSED


def test_what_is_older_than_the_window_does_not_count() -> None:
    one = breaker(Policy(min_calls=2, window_s=10.0))
    one.record(FAILED, 0, 0.0)
    one.record(FAILED, 0, 10.1)
    assert one.state is State.CLOSED
    assert one.reason == ""
    one.record(FAILED, 0, 20.0)
    assert one.reason == ERROR_RATE


def test_probes_close_it_when_all_went_well() -> None:
    one = opened()
    assert one.admit(1.9) == 0
    first = one.admit(2.0)
    assert first > 0
    assert one.admit(2.0) == 0, "the first one goes alone: most often it is enough"
    one.record(0, first, 2.1)
    assert one.wait_s(2.1) > 0
    assert one.admit(2.1) == first
    assert one.admit(2.1) == 0, "no more than `probes` in all"
    one.record(0, first, 2.2)
    assert one.state is State.CLOSED
    for _ in range(3):
        one.record(FAILED, 0, 2.3)
    assert one.state is State.CLOSED, "what was counted before it opened is forgotten"


@pytest.mark.parametrize("flags", [FAILED, SLOW, FAILED | SLOW])
def test_one_bad_probe_opens_it_again_for_twice_as_long(flags: int) -> None:
    one = opened()
    for until_s, next_s in ((2.0, 6.0), (6.0, 14.0), (14.0, 22.0)):  # 4, 8, and 8 again: the cap
        assert one.until_s == until_s
        one.record(flags, one.admit(until_s), until_s)
        assert (one.state, one.until_s, one.reason) == (State.OPEN, next_s, PROBE_FAILED)


def test_a_row_of_openings_ends_when_it_was_closed_for_as_long_as_it_was_open() -> None:
    for healthy_s, open_s in ((1.9, 4.0), (2.1, 2.0)):
        one = opened()
        for _ in range(2):
            one.record(0, one.admit(2.0), 2.0)
        now_s = 2.0 + healthy_s
        for _ in range(4):
            one.record(FAILED, 0, now_s)
        assert one.until_s - now_s == pytest.approx(open_s)


def test_a_probe_that_found_nothing_out_makes_room_for_another() -> None:
    one = opened()
    first = one.admit(2.0)
    one.give_back(first)
    assert one.admit(2.0) == first
    one.record(FAILED, first, 2.0)
    one.give_back(first)
    assert one.admit(2.1) == 0, "what an earlier round gives back is worth nothing"


def test_calls_from_before_it_opened_decide_nothing() -> None:
    one = opened()
    one.admit(2.0)
    one.record(FAILED, 0, 2.0)
    one.record(0, 0, 2.0)
    assert one.state is State.HALF_OPEN


@pytest.mark.parametrize(
    ("crashes_s", "state"),
    [
        ([0.0, 1.0], State.CLOSED),
        ([0.0, 1.0, 2.0], State.OPEN),
        ([0.0, 0.1, 0.2], State.CLOSED),  # side by side
        ([0.0, 1.0, CRASH_MEMORY_S + 2.0], State.CLOSED),
    ],
)
def test_crashes_in_a_row_open_it(crashes_s: list[float], state: State) -> None:
    one = breaker()
    for at_s in crashes_s:
        one.crashed(at_s)
    assert one.state is state
    assert one.reason == (CRASH_LOOP if state else "")


def test_an_answer_ends_a_row_of_crashes_and_a_failure_does_not() -> None:
    for flags, state in ((0, State.CLOSED), (FAILED, State.OPEN)):
        one = breaker()
        for at_s in (0.0, 1.0):
            one.crashed(at_s)
        one.record(flags, 0, 1.5)
        one.crashed(2.0)
        assert one.state is state


def test_a_failed_load_opens_it_until_the_next_try_and_a_load_closes_it() -> None:
    one = breaker()
    one.load_failed(5.0)
    assert (one.state, one.reason, one.wait_s(1.0)) == (State.OPEN, LOAD_FAILED, 4.0)
    one.load_failed(3.0)
    assert one.until_s == 5.0
    one.loaded(4.0)
    assert one.state is State.CLOSED


def test_a_load_does_not_close_what_opened_for_another_reason() -> None:
    one = opened()
    one.loaded(1.0)
    assert one.state is State.OPEN


@given(st.floats(0, 1, exclude_max=True), st.floats(0.01, 50), st.floats(1, 20), st.integers(1, 12))
def test_time_open_is_within_the_jitter_of_doubling_up_to_the_cap(
    chance: float, open_s: float, factor: float, num: int
) -> None:
    policy = Policy(min_calls=1, open_s=open_s, max_open_s=open_s * factor, probes=1)
    one = opened(policy, chance)
    now_s = 0.0
    for _ in range(num - 1):
        now_s = one.until_s
        one.record(FAILED, one.admit(now_s), now_s)
    nominal_s = min(policy.max_open_s, open_s * 2 ** (num - 1))
    assert nominal_s * (1 - JITTER) * 0.999 - 1e-6 <= one.until_s - now_s <= nominal_s * 1.001 + 1e-6


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["call", "call", "call", "end", "end", "cancel", "crash"]),
        st.sampled_from([0, 0, FAILED, SLOW, FAILED | SLOW]),
        st.floats(0, 1.5),
    ),
    max_size=120,
)


@given(EVENTS)
def test_whatever_happens_the_bounds_hold(events: list[tuple[str, int, float]]) -> None:
    """Never more than `probes` calls while half-open; never open by rate with fewer than min_calls in its window."""
    one = breaker(Policy(min_calls=4, window_calls=8, open_s=1.0, max_open_s=4.0, probes=2))
    now_s, in_flight, counted = 0.0, [], 0
    for kind, flags, pause_s in events:
        now_s += pause_s
        before = one.state
        if kind == "call":
            probe = one.admit(now_s) if one.state else 0
            if probe or one.state is State.CLOSED:
                in_flight.append(probe)
        elif kind == "crash":
            one.crashed(now_s + SIDE_BY_SIDE_S)
        elif in_flight:
            probe = in_flight.pop(0)
            if kind == "cancel":
                one.give_back(probe)
            else:
                counted += before is State.CLOSED
                one.record(flags, probe, now_s)
        if one.state is State.OPEN and before is State.CLOSED:
            assert one.reason == CRASH_LOOP or counted >= 4
        if one.state is State.CLOSED and before is not State.CLOSED:
            counted = 0
        if one.state is State.HALF_OPEN:
            current = one._round
            assert sum(probe == current for probe in in_flight) <= 2


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 3)), max_size=60), st.integers(1, 9))
def test_a_window_counts_what_a_list_would(calls: list[tuple[int, float]], max_calls: int) -> None:
    window, now_s = Window(max_calls, 5.0), 0.0
    kept: list[tuple[int, float]] = []
    for flags, pause_s in calls:
        now_s += pause_s
        window.add(flags, now_s)
        window.trim(now_s)
        kept = [(f, at_s) for f, at_s in [*kept, (flags, now_s)] if at_s >= now_s - 5.0][-max_calls:]
        assert window.num == len(kept)
        assert window.num_failed == sum(f & FAILED for f, _ in kept)
        assert window.num_slow == sum(f >> 1 for f, _ in kept)


def test_it_says_how_many_probes_it_would_let_through() -> None:
    """A job worker sends none that would be refused, and so closes a breaker that only its jobs ask."""
    one = opened(chance=0.0)
    assert [one.num_probes(now_s) for now_s in (0.0, 1.9, 2.0)] == [0, 0, 1]
    first = one.admit(2.0)
    assert one.num_probes(2.0) == 0
    one.give_back(first)
    assert one.num_probes(2.0) == 1
    one.record(0, one.admit(2.0), 2.1)
    assert one.num_probes(2.1) == 1, "the second of two"
    one.record(0, one.admit(2.1), 2.2)
    assert one.state is State.CLOSED
