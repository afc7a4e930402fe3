"""Who is given up: whoever has not beaten for a whole lease of ours, and nobody because we did not look."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from samovar_jobs.silence import Silence


def test_a_worker_is_silent_once_its_count_has_stood_still_for_a_lease() -> None:
    silence = Silence(lease_s=3.0, max_gap_s=2.0)
    assert silence.look({"a": 7, "b": 4}, 0.0) == []
    assert silence.look({"a": 8, "b": 4}, 1.5) == []
    assert silence.look({"a": 10, "b": 4}, 3.0) == [("b", 4)]


def test_a_look_that_comes_late_gives_everybody_a_whole_lease() -> None:
    silence = Silence(lease_s=3.0, max_gap_s=2.0)
    silence.look({"a": 7}, 0.0)
    silence.look({"a": 7}, 1.5)
    assert silence.look({"a": 7}, 9.0) == []
    assert silence.look({"a": 7}, 10.5) == []
    assert silence.look({"a": 7}, 12.0) == [("a", 7)]


def test_a_worker_that_comes_back_under_its_id_begins_anew() -> None:
    silence = Silence(lease_s=3.0, max_gap_s=2.0)
    silence.look({"a": 7}, 0.0)
    silence.look({}, 1.5)
    silence.look({"a": 7}, 3.0)
    assert silence.look({"a": 7}, 4.5) == []


@given(st.lists(st.tuples(st.floats(0.01, 5.0), st.booleans()), max_size=40))
def test_who_beats_between_any_two_looks_is_never_silent(steps: list[tuple[float, bool]]) -> None:
    silence, now_s, count = Silence(lease_s=3.0, max_gap_s=2.0), 0.0, 0
    since_beat_s = 0.0
    for gap_s, beats in steps:
        now_s += gap_s
        since_beat_s = 0.0 if beats else since_beat_s + gap_s
        count += beats
        silent = silence.look({"a": count}, now_s)
        assert not silent or since_beat_s >= 3.0
