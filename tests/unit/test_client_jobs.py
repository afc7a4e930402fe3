"""What clients of jobs decide without a connection: when to ask again, what is sent, what an answer means."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar import errors
from samovar import job_requests as requests
from samovar.jobs import MAX_JOBS_PER_REQUEST, CronJob, GroupView, JobOptions, JobState, JobView
from samovar.patience import LONGEST_PAUSE_S, is_passing, pause_s

GONE = errors.ConnectError("nobody there")


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (GONE, True),
        (errors.StoreFull("full"), True),
        (errors.Draining("leaving"), True),
        (errors.RateLimited("20/s"), True),
        (errors.IdempotencyRunning("still at it"), True),
        (errors.DeadlineExceeded("silence", phase="connect"), True),
        (errors.DeadlineExceeded("too late", phase="run"), False),
        (errors.InvalidInput("no"), False),
        (errors.JobNotFound("no"), False),
        (errors.FunctionRaised("no"), False),
    ],
)
def test_what_may_succeed_a_little_later(error: errors.SamovarError, passes: bool) -> None:
    assert is_passing(error) is passes
    assert (pause_s(error, 0, 60.0, 0.5) is not None) is passes


@given(st.integers(0, 10_000), st.floats(0.01, 100), st.floats(0, 1), st.none() | st.floats(0, 100))
def test_a_pause_is_jittered_but_never_sooner_than_asked_nor_beyond_patience(
    attempt: int, left_s: float, chance: float, retry_after_s: float | None
) -> None:
    error = errors.Unavailable("later", retry_after_s=retry_after_s)
    pause = pause_s(error, attempt, left_s, chance)
    if pause is None:
        assert (retry_after_s or 0) >= left_s or left_s <= LONGEST_PAUSE_S
    else:
        assert (retry_after_s or 0) <= pause < left_s
        assert pause <= max(LONGEST_PAUSE_S, retry_after_s or 0)


def test_pauses_grow_and_patience_ends() -> None:
    pauses = [pause_s(GONE, attempt, 60.0, 1.0) for attempt in range(8)]
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert pause_s(GONE, 0, 0.0, 0.0) is None


def test_what_is_sent_is_what_was_said() -> None:
    assert requests.submit_body({"text": "tea"}, {"retries": 3, "unique": None}) == (
        b'{"input":{"text":"tea"},"retries":3}'
    )
    assert requests.submit_body(None, {}) == b'{"input":{}}', "as a call without input"
    assert requests.many_body([b'{"a": 1}', b"2"], {"priority": "low"}, {}) == (
        b'{"inputs":[{"a": 1},2],"priority":"low","reduce":{}}'
    )
    assert requests.upload_body("u1", {}, None) == b'{"upload":"u1"}'
    with pytest.raises(TypeError, match="no option 'retires'; it has retries"):
        requests.submit_body({}, {"retires": 3})


@pytest.mark.parametrize(
    ("said", "sent"),
    [(None, None), (False, None), (True, {}), ("join", {"function": "join"}), ({"allow_failed": True},) * 2],
)
def test_how_a_reduction_is_said(said: object, sent: object) -> None:
    assert requests.reduce_of(said) == sent  # type: ignore[arg-type]


def test_too_many_or_too_long_inputs_are_uploaded() -> None:
    assert not requests.needs_upload([b"1"] * MAX_JOBS_PER_REQUEST)
    assert requests.needs_upload([b"1"] * (MAX_JOBS_PER_REQUEST + 1))
    assert requests.needs_upload([b"1" * requests.MAX_BODY_BYTES, b"1"])


def test_paths_quote_what_people_write() -> None:
    assert requests.job_path("a/b", "/cancel") == "/v1/jobs/a%2Fb/cancel"
    assert requests.job_path("a", wait_s="5.000") == "/v1/jobs/a?wait_s=5.000"
    assert requests.list_path(function="embed", state="", cursor=None, limit=5) == "/v1/jobs?function=embed&limit=5"


def view(state: JobState, **more: object) -> JobView:
    return JobView(id="j", function="f", state=state, **more)  # type: ignore[arg-type]


def test_a_jobs_own_error_is_raised_by_its_code() -> None:
    problem = {"code": "quarantined", "status": 500, "detail": "it took down 3 instances", "crashes": 3}
    failure = requests.failure_of(view(JobState.FAILED, error=problem))
    assert isinstance(failure, errors.Quarantined)
    assert (failure.detail, failure.extra) == ("it took down 3 instances", {"crashes": 3, "job": "j"})
    assert isinstance(requests.failure_of(view(JobState.CANCELED)), errors.JobEnded)
    assert requests.failure_of(view(JobState.FINISHED)) is None
    assert type(requests.failure_of(view(JobState.FAILED))) is errors.SamovarError


def test_a_wait_that_ends_says_what_the_job_waits_for() -> None:
    error = requests.not_done(view(JobState.QUEUED, wait_reason="no_worker"), 30)
    assert isinstance(error, TimeoutError)
    assert error.detail == "job j is still queued (no job worker is running) after 30 s; it goes on, ask for it again"
    assert (error.extra["phase"], error.extra["state"], error.extra["wait_reason"]) == ("queue", "queued", "no_worker")
    assert requests.not_done(view(JobState.STARTED), 0.5).extra["phase"] == "run"
    group = GroupView(id="g", function="f", num_jobs=3, counts={"finished": 1, "queued": 2})
    assert "1 finished, 2 queued" in requests.group_not_done(group, 1).detail
    assert requests.num_done(group) == 1


def test_every_reason_to_wait_has_words() -> None:
    import typing

    from samovar.jobs import WaitReason

    assert set(requests.WAIT_WORDS) == set(typing.get_args(WaitReason))


def test_a_stored_result_is_asked_for() -> None:
    assert requests.is_stored(view(JobState.FINISHED, result_bytes=10))
    assert not requests.is_stored(view(JobState.FINISHED, result_bytes=10, result={"a": 1}))
    assert not requests.is_stored(view(JobState.STARTED, result_bytes=10))


def test_a_cron_job_is_sent_without_what_the_platform_notes() -> None:
    cron = CronJob(
        name="n", function="f", schedule="* * * * *", options=JobOptions(retries=2), next_at_s=5.0, key_id="k"
    )
    body = requests.cron_body(cron)
    assert set(body) == {"function", "schedule", "tz", "input", "missed", "overlap", "enabled", "options"}
    assert body["options"]["retries"] == 2
    assert None not in body["options"].values()


def test_an_event_is_read() -> None:
    event = requests.event_of("7-1", "progress", '{"at_s": 2.5, "fraction": 0.4}')
    assert (event.id, event.kind, event.at_s, event.data) == ("7-1", "progress", 2.5, {"fraction": 0.4})
