"""A worker's pauses: as long as asked, longer in a row, over with the first job that runs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from samovar.jobs import JobState, WaitReason
from samovar_jobs.pauses import FORGET_AFTER_S, LONGEST_S, MAX_PAUSE_S, Pauses, pause_s
from samovar_jobs.verdict import GiveBack
from samovar_storage.jobs.layout import QueueName
from samovar_storage.jobs.records import Settlement

MINE, OTHERS, ELSE = QueueName("f", "a"), QueueName("f", "b"), QueueName("g", "a")


def back(retry_after_s: float | None = None, reason: WaitReason = "busy", is_of_key: bool = False) -> GiveBack:
    return GiveBack(Settlement(state=JobState.QUEUED), reason, retry_after_s, is_of_key)


def test_a_refusal_pauses_the_function_for_as_long_as_it_asked() -> None:
    pauses = Pauses()
    pauses.refused(MINE, back(2.0, "breaker_open"), 10.0, 0.0)
    assert (pauses.most(MINE, 11.9), pauses.most(OTHERS, 11.9), pauses.most(ELSE, 11.9)) == (0, 0, None)
    held = pauses.of(OTHERS, 11.0)
    assert held is not None and (held.reason, held.until_s) == ("breaker_open", 12.0)
    assert pauses.next_s(11.0) == 12.0 and list(pauses.held(11.0)) == ["f"]
    assert pauses.of(MINE, 12.0) is None and pauses.next_s(12.0) is None and not pauses.held(12.0)


def test_a_limit_of_one_key_pauses_its_jobs_alone() -> None:
    pauses = Pauses()
    pauses.refused(MINE, back(2.0, "rate_limited", is_of_key=True), 10.0, 0.0)
    assert (pauses.most(MINE, 11.0), pauses.most(OTHERS, 11.0)) == (0, None)
    assert list(pauses.held(11.0)) == ["f:a"]


def test_one_job_finds_out_and_the_others_follow() -> None:
    pauses = Pauses()
    pauses.refused(MINE, back(2.0), 10.0, 0.0)
    assert pauses.most(OTHERS, 12.5) == 1
    pauses.succeeded(OTHERS)
    assert pauses.most(MINE, 12.5) is None


def test_jobs_refused_together_count_once() -> None:
    pauses = Pauses()
    found = [pauses.refused(MINE, back(), 10.0, 0.5) for _ in range(64)]
    assert {pause.num_refusals for pause in found} == {1} and found[-1].until_s < 10.2
    later = pauses.refused(MINE, back(), found[-1].until_s, 0.5)
    assert later.num_refusals == 2


def test_a_shorter_word_does_not_end_a_pause_early() -> None:
    pauses = Pauses()
    pauses.refused(MINE, back(30.0), 10.0, 0.0)
    assert pauses.refused(MINE, back(0.1), 11.0, 0.0).until_s == 40.0


def test_what_is_long_over_is_forgotten() -> None:
    pauses = Pauses()
    pauses.refused(MINE, back(1.0), 10.0, 0.0)
    pauses.refused(ELSE, back(1.0), 12.0 + FORGET_AFTER_S, 0.0)
    assert pauses.most(MINE, 12.0 + FORGET_AFTER_S) is None


@given(st.integers(1, 1000), st.none() | st.floats(-5, 1e9), st.floats(0, 1, exclude_max=True))
def test_pauses_stay_within_their_bounds(num_refusals: int, retry_after_s: float | None, u: float) -> None:
    seconds = pause_s(num_refusals, retry_after_s, u)
    assert 0 < seconds <= MAX_PAUSE_S
    if retry_after_s is not None and 0 < retry_after_s:
        assert seconds >= min(retry_after_s, MAX_PAUSE_S)
    else:
        assert seconds <= LONGEST_S


def test_being_sent_ends_what_might_have_refused_it_here_but_no_instance_that_is_busy() -> None:
    pauses = Pauses()
    for reason in ("breaker_open", "rate_limited"):
        pauses.refused(MINE, back(2.0, reason), 10.0, 0.0)
        pauses.sent(MINE)
        assert pauses.most(MINE, 11.0) is None
    pauses.refused(MINE, back(), 10.0, 0.0)
    pauses.sent(MINE)
    again = pauses.refused(MINE, back(), 11.0, 0.0)
    assert again.num_refusals == 2, "it waits longer each time, although each was sent"


def test_a_rate_limit_seen_coming_is_told_and_pauses_nothing() -> None:
    pauses = Pauses()
    pauses.limited(MINE, 12.0)
    assert pauses.most(MINE, 11.0) is None
    assert [(key, pause.reason) for key, pause in pauses.held(11.0).items()] == [("f:a", "rate_limited")]
    assert not pauses.held(12.0)
