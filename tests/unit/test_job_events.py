"""The story of a job: what is told of it, in which order, and that a replay from any place is the rest of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.jobs import TERMINAL, JobEvent, JobState, Progress
from samovar_storage.jobs import events, story
from samovar_storage.jobs.records import JobRecord, JobSpec
from samovar_storage.jobs.story import START, EventId, history, parse_id, waiting_event

SPEC = JobSpec(function="embed", key_id="k1", created_at_s=100.0)


def record(state: JobState = JobState.QUEUED, **fields: Any) -> JobRecord:
    return JobRecord(id="a" * 24, spec=SPEC, state=state, queue="sv:embed:k1", **fields)


def said(token: int, number: int, kind: str = "log", **data: Any) -> JobEvent:
    return JobEvent(id=f"{token}-{number}", kind=kind, at_s=200.0 + token, data=data)


def kinds(found: list[JobEvent]) -> list[tuple[str, str]]:
    return [(event.id, event.kind) for event in found]


def test_a_job_that_said_nothing_has_a_story_all_the_same() -> None:
    done = record(JobState.FINISHED, token=1, attempt=1, started_at_s=101.0, ended_at_s=102.0, result_bytes=5)
    told = history(done, [])
    assert kinds(told) == [("0-1", "queued"), ("1-0", "started"), ("2-0", "finished")]
    assert [event.at_s for event in told] == [100.0, 101.0, 102.0]
    assert told[2].data == {"attempt": 1, "result_bytes": 5, "result_type": ""}
    assert kinds(history(record(), [])) == [("0-1", "queued")]
    never_ran = record(JobState.CANCELED, ended_at_s=101.0)
    assert kinds(history(never_ran, [])) == [("0-1", "queued"), ("1-0", "canceled")]


def test_each_attempt_of_a_retried_job_is_shown() -> None:
    stream = [
        said(1, 1, "progress", fraction=0.5),
        said(1, 2, "retry", attempt=1, started_at_s=150.0, error={"code": "function_raised"}),
        said(4, 3, "log", line="once more"),
    ]
    failed = record(JobState.FAILED, token=4, attempt=2, started_at_s=180.0, error={"code": "function_raised"})
    told = history(failed, stream)
    assert kinds(told) == [
        ("0-1", "queued"),
        ("1-0", "started"),
        ("1-1", "progress"),
        ("1-2", "retry"),
        ("4-0", "started"),
        ("4-3", "log"),
        ("5-0", "failed"),
    ]
    assert (told[1].at_s, told[1].data, told[4].data) == (150.0, {"attempt": 1}, {"attempt": 2})
    assert told[-1].data["error"] == {"code": "function_raised"}


def test_a_job_that_waits_again_is_not_started() -> None:
    waits = record(JobState.SCHEDULED, token=2, attempt=1, started_at_s=150.0)
    assert kinds(history(waits, [])) == [("0-1", "queued")]


_attempts = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3)), max_size=5)


@given(_attempts, st.sampled_from([JobState.STARTED, JobState.QUEUED, *sorted(TERMINAL)]))
def test_a_replay_from_any_event_is_the_rest(attempts: list[tuple[int, int]], state: JobState) -> None:
    stream, token, number = [], 0, 0
    for step, num_said in attempts:
        token += step
        for _ in range(num_said):
            number += 1
            stream.append(said(token, number))
    now = record(state, token=token, attempt=len(attempts), started_at_s=120.0 if attempts else 0.0)
    told = history(now, stream)
    places = [parse_id(event.id) for event in told]
    assert places == sorted(set(places)) and places[0] > START
    for index, place in enumerate(places):
        left = [event for event in stream if parse_id(event.id) > place]  # as the stream is read
        assert history(now, left, place) == told[index + 1 :]
        assert parse_id(str(place)) == place


def test_what_is_only_told_live_never_hides_what_comes_after() -> None:
    waits = record(token=2)
    number, last = story.next_number(EventId(2, 7)), EventId(2, 7)
    for _ in range(3):
        event = waiting_event(waits, number, {"position": 4}, 300.0)
        assert parse_id(event.id) > last
        last = parse_id(event.id)
        number = story.next_number(last)
    assert kinds(history(record(JobState.STARTED, token=3, attempt=1, started_at_s=1.0), [], last)) == [
        ("3-0", "started")
    ]
    assert last < story.end_id(waits)


@pytest.mark.parametrize(
    "text", ["", "x", "1", "-1", "1-", "-", "1-x", "1--1", "²-1", f"{1 << 64}-0", "1-2-3", "9" * 99]
)
def test_an_id_that_is_none_of_ours_means_from_the_start(text: str) -> None:
    assert parse_id(text) == START


def test_what_is_said_is_bounded_and_says_what_is_missing() -> None:
    line = events.log_event("é" * 10_000, 1.0).data
    assert len(line["line"].encode()) == events.MAX_LINE_BYTES
    assert line["cut_bytes"] == 20_000 - events.MAX_LINE_BYTES
    assert events.log_event("short", 1.0).data == {"line": "short"}
    assert len(events.progress_event(Progress(fraction=0.5, message="x" * 5000), 1.0).data["message"]) == 1024
    assert events.output_event(b'"%s"' % (b"x" * 20_000), 1.0).data == {"omitted_bytes": 20_002}
    assert msgspec.json.encode(events.output_event(b'{"a":1}', 1.0).data) == b'{"item":{"a":1}}'
    problem = {"code": "function_raised", "detail": "y" * 5000, "traceback": "z" * 100_000}
    told = msgspec.json.encode(events.retry_event(1, 1.0, problem, 2.0, 1.5).data)
    assert len(told) < 3000 and b"function_raised" in told
