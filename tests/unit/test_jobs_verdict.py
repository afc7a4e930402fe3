"""How jobs are left: the table of outcomes, delays, and that every job comes to an end within its bounds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.errors import (
    BadOutput,
    BreakerOpen,
    DeadlineExceeded,
    Draining,
    FunctionNotFound,
    FunctionRaised,
    InstanceLost,
    InvalidInput,
    LoadFailed,
    NoCapacity,
    QueueLate,
    RateLimited,
    SamovarError,
    StoreUnavailable,
    WeightsMissing,
)
from samovar.jobs import TERMINAL, JobState
from samovar_jobs.verdict import (
    MAX_DETAIL_CHARS,
    MAX_RETRY_AFTER_S,
    Ended,
    GiveBack,
    delay_s,
    problem_of,
    runs_alone,
    verdict,
)
from samovar_storage.jobs.records import JobSpec, Settlement, Taken

NOW_S = 1_000_000.0
LOST = InstanceLost("instance i-1 was lost while running the call: it was killed by SIGSEGV")


def job(failures: int = 0, crashes: int = 0, **options: Any) -> Taken:
    spec = JobSpec(function="f", key_id="k", created_at_s=NOW_S, **options)
    return Taken(id="j", spec=spec, input=b"", queue="sv:f:k", token=1, attempt=1, failures=failures, crashes=crashes)


def raised(name: str = "ValueError", **extra: Any) -> FunctionRaised:
    return FunctionRaised(f"{name}: no", type=name, **extra)


def left(
    taken: Taken, error: SamovarError | None = None, u: float = 0.5, now_s: float = NOW_S, **facts: Any
) -> Settlement:
    found = verdict(taken, Ended(error, **facts), now_s, u)
    assert isinstance(found, Settlement)
    return found


def test_an_answer_finishes_the_job_and_keeps_its_counts() -> None:
    found = left(job(failures=2, crashes=1), result=b"[1]", result_type="application/json", lost_runs=1, version=3)
    assert (found.state, found.result, found.version) == (JobState.FINISHED, b"[1]", 3)
    assert (found.failures, found.crashes, found.error) == (2, 2, None)


def test_cancelling_wins_over_whatever_the_attempt_came_to() -> None:
    assert left(job(retries=3), raised(), canceled=True).state is JobState.CANCELED


@pytest.mark.parametrize("error", [raised(), BadOutput("no list"), DeadlineExceeded("late", phase="run")])
def test_a_failure_is_repeated_while_retries_are_left(error: SamovarError) -> None:
    again = left(job(retries=1, backoff_s=8.0), error)
    assert (again.state, again.failures, again.due_at_s) == (JobState.SCHEDULED, 1, NOW_S + 4.0)
    assert again.error is not None and again.error["code"] == error.code, "who looks sees why it waits"
    last = left(job(failures=1, retries=1), error)
    assert (last.state, last.failures) == (JobState.FAILED, 2)


@pytest.mark.parametrize(
    ("options", "error", "state"),
    [
        ({"retry_on": ["OSError"]}, raised("OSError"), JobState.SCHEDULED),
        ({"retry_on": ["OSError"]}, raised("ValueError"), JobState.FAILED),
        ({"give_up_on": ["OSError"]}, raised("OSError"), JobState.FAILED),
        ({"give_up_on": ["OSError"]}, raised("ValueError"), JobState.SCHEDULED),
        ({"retry_on": ["OSError"], "give_up_on": ["OSError"]}, raised("OSError"), JobState.FAILED),
        ({"give_up_on": ["DeadlineExceeded"]}, DeadlineExceeded("late", phase="run"), JobState.FAILED),
        ({}, InvalidInput("no text"), JobState.FAILED),
        ({"retry_on": ["InvalidInput"]}, InvalidInput("no text"), JobState.FAILED),
    ],
)
def test_rules_name_the_classes_worth_another_attempt(
    options: dict[str, Any], error: SamovarError, state: JobState
) -> None:
    assert left(job(retries=5, **options), error).state is state


def test_a_function_that_is_gone_fails_its_jobs() -> None:
    assert left(job(retries=5), FunctionNotFound("f was deleted"), ran=False).state is JobState.FAILED


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RateLimited("too many", retry_after_s=7.0, limit="key"), "rate_limited"),
        (BreakerOpen("open", retry_after_s=7.0), "breaker_open"),
        (QueueLate("late", retry_after_s=7.0), "busy"),
        (LoadFailed("ImportError", retry_after_s=7.0, num_failures=2), "crash_loop"),
        (WeightsMissing("gone", retry_after_s=7.0, num_failures=2), "crash_loop"),
        (NoCapacity("never", retry_after_s=7.0, num_failures=2), "no_capacity"),
        (NoCapacity("no", retry_after_s=7.0), "no_capacity"),
        (Draining("leaving", retry_after_s=7.0), "busy"),
        (StoreUnavailable("away", retry_after_s=7.0), "paused"),
        (DeadlineExceeded("late", retry_after_s=7.0, phase="queue"), "busy"),
    ],
)
def test_backpressure_uses_up_no_attempt(error: SamovarError, reason: str) -> None:
    found = verdict(job(failures=1, crashes=1), Ended(error, ran=False), NOW_S, 0.5)
    assert isinstance(found, GiveBack)
    assert (found.reason, found.retry_after_s) == (reason, 7.0)
    settlement = found.settlement
    assert (settlement.state, settlement.at_front, settlement.counts_attempt) == (JobState.QUEUED, True, False)
    assert (settlement.failures, settlement.crashes) == (1, 1)


@pytest.mark.parametrize(("limit", "is_of_key"), [("key", True), ("key-and-function", True), ("function", False)])
def test_a_limit_of_one_key_holds_up_nobody_else(limit: str, is_of_key: bool) -> None:
    found = verdict(job(), Ended(RateLimited("too many", limit=limit), ran=False), NOW_S, 0.5)
    assert isinstance(found, GiveBack) and found.is_of_key is is_of_key


def test_what_the_handler_raises_is_its_own_doing_whatever_it_is() -> None:
    found = left(job(retries=1, backoff_s=1.0), RateLimited("the other side is full", retry_after_s=30.0))
    assert (found.state, found.failures, found.due_at_s) == (JobState.SCHEDULED, 1, NOW_S + 30.0)


def test_a_crash_runs_it_again_alone_and_uses_up_no_retry() -> None:
    found = left(job(failures=1, retries=1, max_crashes=3), LOST, ran=False, lost_runs=1)
    assert (found.state, found.at_front, found.counts_attempt) == (JobState.QUEUED, True, True)
    assert (found.failures, found.crashes) == (1, 1)
    assert runs_alone(job(crashes=1)) and not runs_alone(job()) and runs_alone(job(max_crashes=1))


@pytest.mark.parametrize(("before", "lost_runs"), [(2, 1), (1, 2), (0, 3)])
def test_too_many_crashes_quarantine_it_with_the_reason(before: int, lost_runs: int) -> None:
    found = left(job(crashes=before, retries=9, max_crashes=3), LOST, ran=False, lost_runs=lost_runs)
    assert found.state is JobState.FAILED and found.crashes == 3 and found.error is not None
    assert (found.error["code"], found.error["crashes"]) == ("quarantined", 3)
    assert "SIGSEGV" in found.error["detail"]


def test_a_broken_device_is_a_crash_although_the_instance_answered() -> None:
    found = left(job(max_crashes=3), raised("RuntimeError", reason="device_lost"))
    assert (found.state, found.crashes, found.failures) == (JobState.QUEUED, 1, 0)


def test_a_crash_counts_even_if_the_second_run_was_refused() -> None:
    found = verdict(job(), Ended(BreakerOpen("crash loop"), ran=False, lost_runs=1), NOW_S, 0.5)
    assert isinstance(found, GiveBack)
    assert (found.settlement.crashes, found.settlement.counts_attempt) == (1, True)


def test_no_attempt_is_planned_after_the_deadline() -> None:
    soon = job(retries=9, backoff_s=100.0, deadline_at_s=NOW_S + 10)
    found = left(soon, raised(), u=0.9)
    assert found.state is JobState.FAILED and found.error is not None
    assert found.error["type"] == "urn:samovar:problem:function_raised" and "deadline" in found.error["note"]
    assert left(soon, raised(), u=0.05).due_at_s == NOW_S + 5


@pytest.mark.parametrize(
    "error", [raised(), LOST, BreakerOpen("open"), DeadlineExceeded("late", phase="queue")], ids=lambda e: e.code
)
def test_after_its_deadline_a_job_ends_whatever_happened(error: SamovarError) -> None:
    found = left(job(retries=9, deadline_at_s=NOW_S), error, ran=False)
    assert found.state is JobState.FAILED and found.error is not None and found.error["code"] == "deadline_exceeded"


def test_an_answer_counts_also_after_the_deadline() -> None:
    assert left(job(deadline_at_s=NOW_S - 1), result=b"1").state is JobState.FINISHED


def test_what_is_kept_of_an_error_is_small_and_private() -> None:
    error = FunctionRaised("x" * 100_000, type="ValueError", traceback="File …", log_tail=["secret"], rows=["y" * 9999])
    kept = problem_of(error)
    assert len(kept["detail"]) == MAX_DETAIL_CHARS
    assert kept.keys().isdisjoint({"traceback", "log_tail", "rows", "request_id"})
    assert problem_of(raised())["status"] == 500


@given(
    failures=st.integers(1, 10_000),
    u=st.floats(0, 1, exclude_max=True),
    backoff_s=st.floats(0, 1e6),
    more_s=st.floats(0, 1e6),
    retry_after_s=st.none() | st.floats(-1e9, 1e300),
)
def test_delays_stay_within_their_bounds(
    failures: int, u: float, backoff_s: float, more_s: float, retry_after_s: float | None
) -> None:
    spec = job(backoff_s=backoff_s, max_backoff_s=backoff_s + more_s).spec
    wait_s = delay_s(spec, failures, u, retry_after_s)
    assert 0 <= wait_s <= max(spec.max_backoff_s, min(retry_after_s or 0, MAX_RETRY_AFTER_S))
    assert wait_s >= min(retry_after_s or 0, MAX_RETRY_AFTER_S)
    if retry_after_s is None:
        assert wait_s <= backoff_s * 2.0 ** min(failures - 1, 64)


outcomes = st.sampled_from(
    [
        Ended(raised("ValueError")),
        Ended(raised("OSError", retry_after_s=3.0)),
        Ended(raised("RuntimeError", reason="device_lost")),
        Ended(DeadlineExceeded("late", phase="run")),
        Ended(LOST, ran=False, lost_runs=1),
        Ended(LOST, ran=False, lost_runs=2),
        Ended(raised(), lost_runs=1),
        Ended(BreakerOpen("open"), ran=False, lost_runs=1),
        Ended(BreakerOpen("open"), ran=False),
        Ended(NoCapacity("full", retry_after_s=2.0), ran=False),
    ]
)


@given(
    retries=st.integers(0, 4),
    max_crashes=st.integers(1, 4),
    life_s=st.none() | st.floats(1, 100),
    steps=st.lists(st.tuples(outcomes, st.floats(0, 1, exclude_max=True), st.floats(0, 9)), min_size=60, max_size=60),
)
def test_every_job_ends_within_its_bounds(
    retries: int, max_crashes: int, life_s: float | None, steps: list[tuple[Ended, float, float]]
) -> None:
    deadline_at_s = 0.0 if life_s is None else NOW_S + life_s
    taken = job(retries=retries, max_crashes=max_crashes, deadline_at_s=deadline_at_s)
    now_s, attempts, refusals = NOW_S, 0, 0
    for ended, u, run_s in steps:
        now_s += run_s
        found = verdict(taken, ended, now_s, u)
        settlement = found.settlement if isinstance(found, GiveBack) else found
        attempts += settlement.counts_attempt
        refusals += not settlement.counts_attempt
        assert taken.failures <= settlement.failures <= retries + 1
        assert taken.crashes <= settlement.crashes
        assert attempts <= retries + max_crashes
        if settlement.state in TERMINAL:
            assert settlement.error is not None
            return
        assert not deadline_at_s or (now_s < deadline_at_s and settlement.due_at_s < deadline_at_s)
        assert settlement.crashes < max_crashes
        now_s = max(now_s, settlement.due_at_s)
        taken = job(
            settlement.failures,
            settlement.crashes,
            retries=retries,
            max_crashes=max_crashes,
            deadline_at_s=deadline_at_s,
        )
    assert attempts + refusals == len(steps) and refusals > 0
