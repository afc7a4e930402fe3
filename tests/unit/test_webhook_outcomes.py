"""What an answer to a delivery means: the table of `outcome.py`, pauses, Retry-After."""

from __future__ import annotations

from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar_jobs.webhooks.outcome import (
    FIRST_PAUSE_S,
    MAX_PAUSE_S,
    MAX_RETRY_AFTER_S,
    MAX_SILENCE_S,
    Answer,
    failure_of,
    pause_s,
    retry_after_s,
)
from samovar_storage.jobs.webhooks import Event

NOW_S = 1_800_000_000.0


def event(attempts: int = 0, lane_failures: int = 0) -> Event:
    """Return an event that was tried so often."""
    return Event(
        id="a.finished",
        job="a",
        state="finished",
        function="echo",
        key_id="k",
        url="http://one.test/",
        at_ms=0,
        attempts=attempts,
        lane_failures=lane_failures,
    )


@pytest.mark.parametrize(
    ("answer", "is_failure", "silence_s", "is_gone"),
    [
        (Answer(status=200), False, 0, False),
        (Answer(status=204), False, 0, False),
        (Answer(status=299), False, 0, False),
        (Answer(status=410), True, 0, True),
        (Answer(status=404), True, 0, False),
        (Answer(status=500), True, 0, False),
        (Answer(status=301, error="moved"), True, 0, False),
        (Answer(status=429), True, 0, False),
        (Answer(status=429, retry_after="120"), True, 120, False),
        (Answer(status=503, retry_after="120"), True, 120, False),
        (Answer(status=500, retry_after="120"), True, 0, False),
        (Answer(kind="silent", error="no answer"), True, 2.5, False),
        (Answer(kind="refused", error="private"), True, 0, False),
    ],
)
def test_each_answer_has_its_consequence(answer: Answer, is_failure: bool, silence_s: float, is_gone: bool) -> None:
    found = failure_of(event(), answer, b"{}", NOW_S, luck=0.5)
    assert (found is not None) == is_failure
    if found is not None:
        assert (found.silence_s, found.is_gone, found.body) == (silence_s, is_gone, b"{}")
        assert found.retry_s == (120 if answer.retry_after else 0.5 * FIRST_PAUSE_S)
        assert found.error == (answer.error or f"answered {answer.status}")


@given(st.integers(0, 10_000), st.floats(0, 1, exclude_max=True))
def test_pauses_double_up_to_a_cap_with_full_jitter(num_failures: int, luck: float) -> None:
    longest_s = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(num_failures, 40))
    assert pause_s(num_failures, MAX_PAUSE_S, luck) == pytest.approx(luck * longest_s)
    answer = Answer(kind="silent")
    found = failure_of(event(lane_failures=num_failures), answer, b"", NOW_S, luck)
    assert found is not None and 1.0 <= found.silence_s <= MAX_SILENCE_S


def test_retry_after_is_seconds_or_a_date_within_a_day() -> None:
    assert retry_after_s("7", NOW_S) == 7
    assert retry_after_s(formatdate(NOW_S + 90, usegmt=True), NOW_S) == 90
    assert retry_after_s(formatdate(NOW_S - 90, usegmt=True), NOW_S) == 0
    assert retry_after_s("9" * 4000, NOW_S) == MAX_RETRY_AFTER_S


@given(st.text(max_size=40))
def test_any_header_is_read(text: str) -> None:
    assert 0 <= retry_after_s(text, NOW_S) <= MAX_RETRY_AFTER_S
