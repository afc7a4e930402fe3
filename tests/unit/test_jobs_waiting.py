"""Why jobs wait and when they may start, case by case; and that a guess is never made out of nothing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.jobs import JobState
from samovar_storage.breakers import BreakerNews
from samovar_storage.jobs.layout import QueueName
from samovar_storage.jobs.records import Hold, JobRecord, JobSpec, WorkerStatus
from samovar_storage.jobs.waiting import Facts, estimated_start_s, wait_reason
from samovar_storage.records import BootFailure, VersionStatus

NOW_S = 1000.0


def record(state: JobState = JobState.QUEUED, age_s: float = 60.0, **facts: Any) -> JobRecord:
    spec = JobSpec(function="f", key_id="a", created_at_s=NOW_S - age_s)
    return JobRecord(id="j", spec=spec, state=state, queue="sv:f:a", enqueued_at_s=NOW_S - age_s, **facts)


def worker(name: str = "w", **facts: Any) -> WorkerStatus:
    return WorkerStatus(worker=name, at_s=NOW_S, **facts)


def version(ready: int = 0, starting: int = 0) -> VersionStatus:
    return VersionStatus(ref="f@1", desired=1, ready=ready, starting=starting, draining=0, reason="cold", at_s=NOW_S)


def breaker(reason: str = "error_rate", until_s: float = NOW_S + 5) -> BreakerNews:
    return BreakerNews(ref="f@1", gateway="g", state="open", until_s=until_s, reason=reason)


FAILURE = BootFailure(ref="f@1", code="load_failed", status=500, detail="ImportError")
PAUSED = worker("p", holds={"f": Hold(reason="rate_limited", until_s=NOW_S + 5)})


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (record(JobState.DEFERRED), ("dependencies", None)),
        (record(JobState.SCHEDULED, due_at_s=NOW_S + 9, failures=1), ("retry", 9.0)),
        (record(JobState.SCHEDULED, due_at_s=NOW_S - 1), ("delayed", 0.0)),
        (record(JobState.STARTED), None),
        (record(JobState.FAILED), None),
    ],
)
def test_only_a_queued_job_asks_who_could_run_it(job: JobRecord, expected: tuple[str, float | None] | None) -> None:
    assert wait_reason(job, Facts(), 0, NOW_S) == expected


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (Facts(versions=(version(ready=1),)), "no_worker"),
        (Facts((PAUSED,), (version(ready=1),)), "rate_limited"),
        (Facts((worker(holds={"f:a": Hold(reason="paused")}),), (version(ready=1),)), "paused"),
        (Facts((PAUSED, worker()), (version(ready=1),)), "busy"),
        (Facts((worker(holds={"f:b": Hold(reason="paused")}),), (version(ready=1),)), "busy"),
        (Facts((worker(holds={"f": Hold(reason="paused", until_s=NOW_S)}),), (version(ready=1),)), "busy"),
        (Facts((worker(holds={"": Hold(reason="paused")}),), (version(ready=1),)), "paused"),
        (Facts((worker(running={"f": 1}), worker(running={"f": 2})), (version(ready=1),), max_running=3), "paused"),
        (Facts((worker(running={"f": 2, "g": 9}),), (version(ready=1),), max_running=3), "busy"),
        (Facts((worker(),), (version(ready=1),), breakers=(breaker(),)), "breaker_open"),
        (Facts((worker(),), (version(ready=1),), breakers=(breaker(until_s=NOW_S),)), "busy"),
        (Facts((worker(),), (version(),), (FAILURE,)), "crash_loop"),
        (Facts((worker(),), (version(),), breakers=(breaker("crash_loop"),)), "crash_loop"),
        (Facts((worker(),), (version(),), breakers=(breaker(),)), "breaker_open"),
        (Facts((worker(),), (version(starting=1),)), "cold_start"),
        (Facts((worker(),), (version(),)), "no_capacity"),
        (Facts((worker(),)), "no_capacity"),
        (Facts((worker(taken_per_s={"sv:f:b": 1.0}),)), "busy"),
        (Facts((worker(taken_per_s={"sv:g:b": 1.0}),)), "no_capacity"),
    ],
)
def test_the_reason_is_the_first_thing_that_is_missing(facts: Facts, reason: str) -> None:
    found = wait_reason(record(), facts, 0, NOW_S)
    assert found is not None and found[0] == reason


def test_a_job_that_just_came_waits_for_a_cold_start() -> None:
    found = wait_reason(record(age_s=0.1), Facts((worker(),), (version(),)), 0, NOW_S)
    assert found == ("cold_start", None)


def test_the_start_is_guessed_from_what_workers_took_lately() -> None:
    both = (worker("v", taken_per_s={"sv:f:a": 2.0}), worker("w", taken_per_s={"sv:f:a": 3.0, "sv:f:b": 5.0}))
    assert wait_reason(record(), Facts(both, (version(ready=1),)), 99, NOW_S) == ("busy", 20.0)


def test_a_pause_of_all_workers_is_waited_for() -> None:
    paused = worker(holds=PAUSED.holds, taken_per_s={"sv:f:a": 100.0})
    assert wait_reason(record(), Facts((paused,), (version(ready=1),)), 0, NOW_S) == ("rate_limited", 5.0)


@pytest.mark.parametrize(
    ("queue", "expected"),
    [
        (QueueName("f", "new"), 10 / 2.0),  # a third of 6 jobs a second
        (QueueName("f", "new", "low"), None),  # behind all normal ones
        (QueueName("g", "new"), None),
        (QueueName("f", "a"), 10 / 4.0),
    ],
)
def test_a_new_queue_expects_its_fair_share(queue: QueueName, expected: float | None) -> None:
    told = worker(taken_per_s={"sv:f:a": 4.0, "sv:f:b": 2.0})
    assert estimated_start_s(queue, [told], 9) == expected


rates = st.dictionaries(st.sampled_from(["sv:f:a", "sv:f:b", "sv:f:a:low", "sv:g:a", "other"]), st.floats(0, 1e6))


@given(st.lists(rates, max_size=3), st.integers(0, 1_000_000))
def test_a_guess_is_positive_and_never_made_out_of_nothing(told: list[dict[str, float]], position: int) -> None:
    workers = [worker(str(number), taken_per_s=one) for number, one in enumerate(told)]
    start_s = estimated_start_s(QueueName("f", "a"), workers, position)
    assert start_s is None or start_s > 0
    if not any(per_s for one in told for name, per_s in one.items() if name.startswith("sv:f:")):
        assert start_s is None
