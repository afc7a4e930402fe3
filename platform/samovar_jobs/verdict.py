"""How a job is left once an attempt at it has ended.

| the attempt                                             | then
|---------------------------------------------------------|------------------------------------------------------------
| answered                                                | finished
| was cancelled                                           | canceled
| ended otherwise, after the job's own deadline           | failed: deadline_exceeded
| took its instance down (or its device), max_crashes     | failed: quarantined
|   times by now                                          |
| … fewer times                                           | at the head of its queue again, to be run alone
| was refused, or waited in vain, before it ran           | given back as if never taken; its queue pauses
| raised what the caller is to blame for (4xx)            | failed
| raised anything else, or ran out of its timeout         | again later, while retries, rules and deadline allow; else
|                                                         |   failed with that error

Failures and crashes are counted apart: neither uses up what the other may have. What a handler raises is its own
doing, also an error of ours such as RateLimited, whose `retry_after_s` is then the least to wait. Delays: exponential
back-off with full jitter, as in Marc Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
This module does not know Redis, the dispatcher or the clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from samovar import problems
from samovar.errors import (
    BreakerOpen,
    DeadlineExceeded,
    Draining,
    InstanceLost,
    LoadFailed,
    NoCapacity,
    Quarantined,
    RateLimited,
    RequestError,
    SamovarError,
    Shed,
    StoreUnavailable,
    Unavailable,
)
from samovar.jobs import JobState, WaitReason
from samovar_storage.jobs.records import JobSpec, Settlement, Taken

MAX_RETRY_AFTER_S = 24 * 3600.0  # an error that asks for more is taken at this
MAX_DETAIL_CHARS = 2000
MAX_EXTRA_BYTES = 4096
_PRIVATE = ("traceback", "log_tail", "request_id")
_MAX_DOUBLINGS = 64


@dataclass(frozen=True, slots=True)
class Ended:
    """What the dispatcher says of an attempt.

    error: None if it answered (`result`, `result_type`) or was `canceled`. ran: an instance had it, so that the error
    is the handler's own; False when this process stops it in order to leave. lost_runs: runs of it that ended with
    their instance, >= 0. version: that ran it, 0 = none.
    """

    error: SamovarError | None = None
    ran: bool = True
    lost_runs: int = 0
    canceled: bool = False
    result: bytes = b""
    result_type: str = ""
    version: int = 0


@dataclass(frozen=True, slots=True)
class GiveBack:
    """The job waits again, at the head of its queue, and no attempt was used.

    reason: what its queue waits for. retry_after_s: how long at least, None = nobody knows. is_of_key: only the jobs
    of the same API key have to wait, not all of the function.
    """

    settlement: Settlement
    reason: WaitReason
    retry_after_s: float | None = None
    is_of_key: bool = False


def runs_alone(taken: Taken) -> bool:
    """Return whether an attempt gets an instance to itself: it is a suspect, or one more crash would be its last.

    So nobody is quarantined for what another one did on the same instance.
    """
    return taken.crashes > 0 or taken.spec.max_crashes == 1


def verdict(taken: Taken, ended: Ended, now_s: float, u: float) -> Settlement | GiveBack:
    """Return how the job is left.

    Args:
        taken: the job as it was when the attempt began.
        now_s: unix seconds.
        u: chance, uniform in [0, 1).
    """
    spec, error = taken.spec, ended.error
    if ended.canceled or error is None:
        state = JobState.CANCELED if ended.canceled else JobState.FINISHED
        return _left(taken, ended, state, result=ended.result, result_type=ended.result_type)
    crashes = taken.crashes + _num_crashes(error, ended.lost_runs)
    if crashes > taken.crashes and crashes >= spec.max_crashes:
        return _failed(taken, ended, _quarantined(crashes, error), crashes)
    if 0 < spec.deadline_at_s <= now_s:
        return _failed(taken, ended, _too_late(error), crashes)
    if not ended.ran and (reason := wait_reason_of(error)):
        return _given_back(taken, ended, error, reason, crashes)
    if crashes > taken.crashes:
        doc = problem_of(error)
        return _left(taken, ended, JobState.QUEUED, error=doc, crashes=crashes, at_front=True)
    return _after_failure(taken, ended, error, now_s, u)


def delay_s(spec: JobSpec, failures: int, u: float, retry_after_s: float | None = None) -> float:
    """Return how long to wait after the `failures`-th failure (>= 1), seconds, >= 0.

    Within [0, min(max_backoff_s, backoff_s x 2^(failures - 1))), and at least `retry_after_s`, of which a day is
    believed.
    """
    most_s = min(spec.max_backoff_s, spec.backoff_s * 2.0 ** min(failures - 1, _MAX_DOUBLINGS))
    floor_s = min(max(0.0, retry_after_s or 0.0), MAX_RETRY_AFTER_S)
    return max(floor_s, u * most_s)


def is_worth_another(spec: JobSpec, error: SamovarError) -> bool:
    """Return whether the job's rules allow another attempt after `error`, were there one left.

    A rule names the class of the handler's exception, or of our error. `give_up_on` wins; errors the caller is to blame
    for are never worth it.
    """
    name = str(error.extra.get("type") or type(error).__name__)
    if isinstance(error, RequestError) or name in spec.give_up_on:
        return False
    return not spec.retry_on or name in spec.retry_on


def wait_reason_of(error: SamovarError) -> WaitReason | None:
    """Return what a job waits for that was refused with `error` before it ran; None if that is no reason to wait."""
    if "num_failures" in error.extra and not isinstance(error, NoCapacity):
        return "crash_loop"  # the error of a boot that failed, whatever it was
    return next((reason for kind, reason in _WAITS if isinstance(error, kind)), None)


_WAITS: tuple[tuple[type[SamovarError], WaitReason], ...] = (
    (RateLimited, "rate_limited"),
    (BreakerOpen, "breaker_open"),
    (LoadFailed, "crash_loop"),
    (NoCapacity, "no_capacity"),
    (Shed, "busy"),
    (Draining, "busy"),
    (StoreUnavailable, "paused"),
    (DeadlineExceeded, "busy"),  # the attempt's timeout passed in a queue: it never ran
    (Unavailable, "no_capacity"),
)


def problem_of(error: SamovarError) -> dict[str, Any]:
    """Return the problem document a job keeps: a few KiB at most, without traceback or log."""
    extra = {key: value for key, value in error.extra.items() if key not in _PRIVATE}
    if len(msgspec.json.encode(extra, enc_hook=str)) > MAX_EXTRA_BYTES:
        extra = {key: str(extra[key])[:MAX_DETAIL_CHARS] for key in ("type", "reason", "phase") if key in extra}
    return {**extra, **problems.standard(error), "detail": error.detail[:MAX_DETAIL_CHARS]}


def _after_failure(taken: Taken, ended: Ended, error: SamovarError, now_s: float, u: float) -> Settlement:
    spec, failures = taken.spec, taken.failures + 1
    doc = problem_of(error)
    if failures > spec.retries or not is_worth_another(spec, error):
        return _left(taken, ended, JobState.FAILED, error=doc, failures=failures)
    wait_s = delay_s(spec, failures, u, error.retry_after_s)
    if 0 < spec.deadline_at_s <= now_s + wait_s:
        doc["note"] = f"another attempt could start in {wait_s:.1f} s, after the job's deadline"
        return _left(taken, ended, JobState.FAILED, error=doc, failures=failures)
    state = JobState.SCHEDULED if wait_s > 0 else JobState.QUEUED
    due_at_s = now_s + wait_s if wait_s > 0 else 0.0
    return _left(taken, ended, state, error=doc, failures=failures, due_at_s=due_at_s)


def _given_back(taken: Taken, ended: Ended, error: SamovarError, reason: WaitReason, crashes: int) -> GiveBack:
    """A run that was lost before the refusal still counts, as a crash and as an attempt."""
    was_run = crashes > taken.crashes
    doc = problem_of(error) if was_run else None
    left = _left(taken, ended, JobState.QUEUED, error=doc, crashes=crashes, at_front=True, counts_attempt=was_run)
    is_of_key = isinstance(error, RateLimited) and "key" in str(error.extra.get("limit", ""))
    return GiveBack(left, reason, error.retry_after_s, is_of_key)


def _failed(taken: Taken, ended: Ended, error: SamovarError, crashes: int) -> Settlement:
    return _left(taken, ended, JobState.FAILED, error=problem_of(error), crashes=crashes)


def _left(taken: Taken, ended: Ended, state: JobState, **changes: Any) -> Settlement:
    counts = {"failures": taken.failures, "crashes": taken.crashes + ended.lost_runs}
    return Settlement(state=state, version=ended.version, **(counts | changes))


def _num_crashes(error: SamovarError, lost_runs: int) -> int:
    """An instance whose device context broke answers, but is as lost as one that died."""
    if isinstance(error, InstanceLost):
        return max(1, lost_runs)
    return lost_runs + (error.extra.get("reason") == "device_lost")


def _quarantined(crashes: int, error: SamovarError) -> Quarantined:
    times = "once" if crashes == 1 else f"{crashes} times"
    return Quarantined(f"the job took its instance down {times}; the last: {error.detail}", crashes=crashes)


def _too_late(error: SamovarError) -> DeadlineExceeded:
    phase = error.extra.get("phase", "run") if isinstance(error, DeadlineExceeded) else "retry"
    return DeadlineExceeded(f"the job's deadline passed; the last attempt: {error.detail}", phase=phase)
