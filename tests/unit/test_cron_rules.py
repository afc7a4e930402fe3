"""Which runs are made: on time, missed, overlapping, after any step of the clock."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.jobs import CronJob
from samovar_jobs.cron_rules import GRACE_S, MAX_MISSED, Plan, may_run, overlapping, plan, run_id
from samovar_storage.jobs.specs import is_job_id
from samovar_storage.records import ApiKeyRecord

HOUR_S = 3600.0
T0 = 1_800_000_000.0  # a full hour


def cron(**more: Any) -> CronJob:
    """Return an hourly cron job."""
    fields: dict[str, Any] = {"name": "n", "function": "echo", "schedule": "0 * * * *"} | more
    return CronJob(**fields)


@pytest.mark.parametrize("missed", ["skip", "last", "all"])
def test_one_that_is_due_runs_whatever_the_policy(missed: str) -> None:
    found = plan(cron(missed=missed), T0, T0 + HOUR_S + 1)
    assert found == Plan(runs=[T0 + HOUR_S], upto_s=T0 + HOUR_S, next_s=T0 + 2 * HOUR_S)


def test_nothing_is_due() -> None:
    assert plan(cron(), T0, T0 + 10) == Plan(runs=[], next_s=T0 + HOUR_S)


@pytest.mark.parametrize(
    ("missed", "late_s", "runs"),
    [
        ("skip", 1, [3]),
        ("skip", GRACE_S + 1, []),
        ("last", 1, [3]),
        ("last", GRACE_S + 1, [3]),
        ("all", 1, [1, 2, 3]),
        ("all", GRACE_S + 1, [1, 2, 3]),
    ],
)
def test_missed_runs_follow_the_policy(missed: str, late_s: float, runs: list[int]) -> None:
    found = plan(cron(missed=missed), T0, T0 + 3 * HOUR_S + late_s)
    assert found.runs == [T0 + number * HOUR_S for number in runs]
    assert found.upto_s == T0 + 3 * HOUR_S, "what is left out does not come again"
    assert bool(found.notice) == (len(runs) < 3)


def test_of_all_missed_runs_the_newest_hundred_are_made_up_for_with_notice() -> None:
    found = plan(cron(missed="all"), T0, T0 + 1000 * HOUR_S)
    assert found.runs == [T0 + number * HOUR_S for number in range(901, 1001)]
    assert len(found.runs) == MAX_MISSED and "more than 0" in found.notice


@given(st.lists(st.floats(-5 * HOUR_S, 5 * HOUR_S), max_size=30), st.sampled_from(["skip", "last", "all"]))
def test_no_step_of_the_clock_makes_a_run_twice(steps: list[float], missed: str) -> None:
    now_s, last_s, made = T0, T0, []
    for step in steps:
        now_s += step
        found = plan(cron(missed=missed), last_s, now_s)
        made += found.runs
        last_s = found.upto_s or last_s
        assert found.next_s > now_s
    assert made == sorted(set(made))


def test_overlap_leaves_out_queues_or_replaces() -> None:
    wanted = Plan(runs=[T0, T0 + HOUR_S], upto_s=T0 + HOUR_S, next_s=T0 + 2 * HOUR_S)
    assert overlapping(cron(overlap="queue"), wanted) == wanted
    assert overlapping(cron(overlap="cancel"), wanted).runs == [T0 + HOUR_S]
    skipped = overlapping(cron(overlap="skip"), wanted)
    assert (skipped.runs, skipped.upto_s) == ([], wanted.upto_s)
    assert skipped.notice


def test_a_run_has_one_id() -> None:
    assert is_job_id(run_id("n", T0))
    assert run_id("n", T0) == run_id("n", T0) != run_id("m", T0)
    assert run_id("n", T0) < run_id("n", T0 + 1)


@pytest.mark.parametrize(
    ("more", "may"),
    [
        ({}, True),
        ({"scopes": ["admin"]}, True),
        ({"scopes": ["deploy"]}, False),
        ({"functions": ["echo"]}, True),
        ({"functions": ["other"]}, False),
        ({"expires_at_s": T0 - 1}, False),
        ({"expires_at_s": T0 + 1}, True),
    ],
)
def test_a_key_may_run_what_it_may_call(more: dict[str, Any], may: bool) -> None:
    fields: dict[str, Any] = {"key_id": "k", "name": "k", "secret_sha256": "", "scopes": ["invoke"]} | more
    assert may_run(ApiKeyRecord(**fields), "echo", T0) == may
