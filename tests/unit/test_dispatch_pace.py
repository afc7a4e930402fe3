"""How fast a version gets through its calls, and what a newcomer has to expect."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.errors import ConcurrencyLimited, LowPriority, Shed, WouldBeLate
from samovar.lifecycle import State
from samovar_dispatch.ask import BACKGROUND, HIGH, LOW, NORMAL
from samovar_dispatch.waiting.concurrency import PROBE_EVERY, GradientLimit
from samovar_dispatch.waiting.pace import FRESH_S, NUM_BOOTS, Arrival, Boots, Pace, wait_s
from samovar_dispatch.waiting.shedding import INTERVAL_TARGETS, Backup, Outlook, target_s

NOW_S = 50.0


def paced(call_s: float, dev_s: float = 0.0) -> Pace:
    """Return the pace of a version whose calls take `call_s`."""
    pace = Pace()
    pace.held_s = pace.lane_s = pace.service_s = call_s
    pace.dev_s, pace.measured_s = dev_s, NOW_S
    return pace


@pytest.mark.parametrize(
    ("work_s", "lanes", "arrivals", "expected_s"),
    [
        (4.0, 2, [], 2.0),
        (0.0, 2, [], 0.0),
        (4.0, 0, [], float("inf")),
        (4.0, 0, [Arrival(3.0, 2)], 5.0),
        (4.0, 1, [Arrival(1.0, 2)], 2.0),
        (4.0, 1, [Arrival(9.0, 2)], 4.0),
        (6.0, 1, [Arrival(1.0, 1), Arrival(2.0, 1)], 3.0),
    ],
)
def test_work_is_shared_among_those_there_and_those_to_come(
    work_s: float, lanes: float, arrivals: Sequence[Arrival], expected_s: float
) -> None:
    assert wait_s(work_s, lanes, arrivals) == pytest.approx(expected_s)


@given(
    st.floats(0.0, 100.0),
    st.floats(1.0, 10.0),
    st.lists(st.builds(Arrival, st.floats(0.0, 20.0), st.floats(0.5, 4.0)), max_size=5).map(sorted),
)
def test_the_wait_is_when_the_work_is_done(work_s: float, lanes: float, arrivals: list[Arrival]) -> None:
    waited_s = wait_s(work_s, lanes, arrivals)
    done_s = lanes * waited_s + sum(a.lanes * max(0.0, waited_s - a.in_s) for a in arrivals)
    assert done_s == pytest.approx(work_s, abs=1e-6)
    assert waited_s <= work_s / lanes + 1e-9, "help never makes it longer"


def test_time_in_a_lane_is_measured_while_calls_wait() -> None:
    pace = paced(0.02)
    for number in range(500):
        pace.departed(NOW_S + number * 0.015, 2)
    assert pace.lane_s == pytest.approx(0.03, rel=0.01), "two lanes, one departure every 15 ms"
    pace.emptied()
    pace.departed(NOW_S + 1000.0, 2)
    assert pace.lane_s == pytest.approx(0.03, rel=0.01), "the time in which nobody waited says nothing"
    for _ in range(100):
        pace.ended(NOW_S, 0.02, 0.02, is_backlogged=False)
    assert pace.lane_s == pytest.approx(0.02, rel=0.01), "and is forgotten for the bare service time"


def test_a_measured_pace_keeps_out_the_hopeless_but_not_for_long() -> None:
    pace = Pace()
    assert not pace.is_hopeless(0.0001, NOW_S)
    for _ in range(100):
        pace.ended(NOW_S, 0.02, 0.02, is_backlogged=False)
    assert pace.is_hopeless(0.015, NOW_S)
    assert not pace.is_hopeless(0.021, NOW_S)
    assert not pace.is_hopeless(0.015, NOW_S + FRESH_S), "it may have become faster: one may try"


def test_of_a_stream_no_more_is_expected_than_its_first_item() -> None:
    """How long it goes on is up to who asks: calls that ask for much say nothing about one that asks for little."""
    texts = Pace(streams=True)
    for _ in range(100):
        texts.began(0.2)
        texts.ended(NOW_S, 30.0, 0.5, is_backlogged=False)
    assert not texts.is_hopeless(2.0, NOW_S), "a short answer fits, though all before it took half a minute"
    assert texts.is_hopeless(0.1, NOW_S), "no item would come in time"
    Outlook(texts, 0, [Arrival(1.0, 64)]).check(0, 2.0, NORMAL)
    with pytest.raises(WouldBeLate, match=r"begin 0\.20 s later"):
        Outlook(texts, 0, [Arrival(1.0, 64)]).check(0, 1.1, NORMAL)
    with pytest.raises(WouldBeLate):
        Outlook(texts, 1, (), [30.0]).check(0, 20.0, NORMAL)


def test_calls_that_differ_say_little_of_a_stream_for_which_nobody_waits() -> None:
    texts = Pace(streams=True)
    for held_s in (1.0, 60.0) * 50:
        texts.began(0.2)
        texts.ended(NOW_S, held_s, 0.5, is_backlogged=False)
    Outlook(texts, 0, [Arrival(1.0, 64)]).check(0, 2.0, NORMAL)


def test_what_is_on_its_way_is_expected_by_the_fastest_of_the_last_boots() -> None:
    boots = Boots()
    boots.hear("a", State.LOADING, NOW_S)
    assert boots.arrivals(NOW_S, 1.0, 1.0) == [], "no boot was measured"
    boots.arrived("a", 4.0)
    boots.arrived("b", 0.0)
    boots.arrived("b", 2.0)
    assert boots.arrivals(NOW_S, 1.0) == []
    assert boots.arrivals(NOW_S, 1.0, 8.0) == [Arrival(2.0, 8.0)], "who waits brings one up"
    boots.hear("c", State.LOADING, NOW_S - 0.5)
    boots.hear("c", State.LOADING, NOW_S)
    boots.hear("d", State.READY, NOW_S)
    assert boots.arrivals(NOW_S, 8.0, 8.0) == [Arrival(0.0, 8.0), Arrival(1.5, 8.0)]
    boots.hear("d", State.DRAINING, NOW_S)
    assert boots.arrivals(NOW_S + 100.0, 8.0) == [], "one that does not come is not waited for"
    for _ in range(NUM_BOOTS):
        boots.arrived("e", 3.0)
    assert boots.arrivals(NOW_S, 8.0, 8.0)[0].in_s == 2.5


@pytest.mark.parametrize(
    ("num_ahead", "left_s", "priority", "refusal"),
    [
        (0, 0.12, NORMAL, None),
        (4, 0.5, NORMAL, None),
        (4, 0.3, NORMAL, WouldBeLate),
        (4, 0.3, HIGH, WouldBeLate),
        (4, 0.5, LOW, LowPriority),
        (4, 1.0, LOW, None),
        (4, 1.0, BACKGROUND, LowPriority),
        (400, 1.0, BACKGROUND, WouldBeLate),
    ],
)
def test_who_cannot_make_it_is_refused_and_low_ones_first(
    num_ahead: int, left_s: float, priority: int, refusal: type[Shed] | None
) -> None:
    outlook = Outlook(paced(0.1), 2, (), [0.0, 0.05])
    if refusal is None:
        outlook.check(num_ahead, left_s, priority)
        return
    with pytest.raises(refusal) as raised:
        outlook.check(num_ahead, left_s, priority)
    assert type(raised.value) is refusal
    assert 1.0 <= (raised.value.retry_after_s or 0.0) <= 60.0
    assert raised.value.extra["predicted_wait_s"] == pytest.approx(num_ahead // 2 * 0.1)


def test_the_limit_is_named_when_it_is_why() -> None:
    with pytest.raises(ConcurrencyLimited):
        Outlook(paced(0.1), 1, (), [0.1], is_limited=True).check(9, 0.5, NORMAL)


def test_nothing_known_refuses_nobody_and_a_boot_counts() -> None:
    Outlook(Pace(), 0).check(1000, 0.001, NORMAL)
    Outlook(paced(0.01), 0, [Arrival(0.5, 1)]).check(0, 1.0, NORMAL)
    with pytest.raises(WouldBeLate):
        Outlook(paced(0.01), 0, [Arrival(0.5, 1)]).check(0, 0.4, NORMAL)


def test_only_a_queue_that_stays_late_and_does_not_shrink_is_backed_up() -> None:
    target = target_s(0.02)
    interval_s = INTERVAL_TARGETS * target

    def looks(waited_s: float, lengths: Sequence[int]) -> Backup:
        backup = Backup()
        for step, num_waiting in enumerate(lengths):
            backup.look(NOW_S + step * interval_s / 2, waited_s, num_waiting, target)
        return backup

    assert not looks(target * 0.9, [9] * 10).is_backed_up
    assert not looks(target * 9, [9] * 2).is_backed_up
    assert looks(target * 9, [9] * 3).is_backed_up
    assert not looks(target * 9, [90, 80, 70, 60, 50, 40]).is_backed_up, "a burst being worked off"
    backup = looks(target * 9, [9] * 3)
    assert backup.look(NOW_S + 99, target * 0.6, 1, target), "not yet recovered"
    assert not backup.look(NOW_S + 99, target * 0.4, 1, target)


def adapted(slots: int, run_s: float, slowed_by_mates: float, num_calls: int = 2000) -> GradientLimit:
    """Return the limit of an instance whose calls take longer by a share of `slowed_by_mates` for each mate."""
    limit = GradientLimit(slots)
    limit.ended(run_s, was_alone=True, is_full=False)
    for _ in range(num_calls):
        at_once = limit.limit
        took_s = run_s * (1 + slowed_by_mates * (at_once - 1))
        limit.ended(took_s, was_alone=at_once == 1, is_full=True)
    return limit


@pytest.mark.parametrize(
    ("slowed_by_mates", "least", "most"),
    [(0.0, 8, 8), (0.05, 7, 8), (1.0, 2, 4)],
    ids=["it awaits", "it mostly awaits", "it computes"],
)
def test_the_limit_is_what_does_the_calls_good(slowed_by_mates: float, least: int, most: int) -> None:
    assert least <= adapted(8, 0.05, slowed_by_mates).limit <= most


def test_without_a_baseline_the_limit_stays_and_is_asked_for_in_time() -> None:
    limit = GradientLimit(8)
    for _ in range(PROBE_EVERY - 1):
        assert limit.ended(0.4, was_alone=False, is_full=True) == 8
    assert limit.ended(0.4, was_alone=False, is_full=True) == 1, "one call alone, to see"
    assert limit.ended(0.05, was_alone=True, is_full=True) == 8


@given(st.lists(st.tuples(st.floats(1e-6, 10.0), st.booleans(), st.booleans()), max_size=200), st.integers(1, 16))
def test_the_limit_stays_within_its_bounds(samples: list[tuple[float, bool, bool]], slots: int) -> None:
    limit = GradientLimit(slots)
    for run_s, was_alone, is_full in samples:
        assert 1 <= limit.ended(run_s, was_alone=was_alone, is_full=is_full) <= slots
