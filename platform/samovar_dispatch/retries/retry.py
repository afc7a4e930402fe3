"""What becomes of a call whose instance was lost.

| the call                                   | then
|--------------------------------------------|------------------------------------------------------------------
| nobody waits for it any more               | dropped
| it never started                           | back to the head of the queue, silently
| another one was stopped with the instance, | the same
|   retry_on_crash                           |
| it may have started, retry_on_crash, first | once more, alone on an instance: what crashed one may crash the
|   time, deadline and budget leave room     |   next, and must then take nobody with it
| else                                       | fails: the instance was lost

An instance starts calls in the order they came, so of those in flight only the oldest `slots` can have started. With
retry_on_crash off, and of queued jobs, the instance also says so call by call (Started). What it does not say proves
nothing: a handler may take its process down before that word is out.
What never started is no retry: it costs no budget. A queued job is never run twice here: each of its runs has a fencing
token of its own, which whoever queued it gives out. This module does not know connections, queues or clocks.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum


class Verdict(Enum):
    DROP = "drop"
    REDISPATCH = "redispatch"
    RETRY_ALONE = "retry_alone"
    FAIL = "fail"


def may_have_started(position: int, slots: int, *, notified: bool) -> bool:
    """Return whether user code may have seen the call.

    Args:
        position: its place among the calls in flight on that instance, oldest = 0.
        slots: calls the instance works on at once, >= 1.
        notified: the instance reported its start.
    """
    return notified or position < slots


def after_loss(
    *,
    wanted: bool,
    started: bool,
    blameless: bool,
    num_attempts: int,
    retry_on_crash: bool,
    may_spend: Callable[[], bool],
    remaining_s: float,
    service_s: float,
) -> Verdict:
    """Return what to do with a call whose instance was lost.

    Args:
        wanted: somebody still waits for the answer.
        started: user code may have seen it, or part of its answer was sent on.
        blameless: the instance ended itself to stop other calls than this one.
        num_attempts: runs that ended in a lost instance for which it may be to blame, this one included.
        may_spend: takes one retry out of the budget (`retry_budget.py`), False if there is none; asked last.
        remaining_s: seconds until its deadline.
        service_s: usual run time, seconds, 0 when unknown: with less than that left a retry is not worth it.
    """
    if not wanted:
        return Verdict.DROP
    if not started or (blameless and retry_on_crash):
        return Verdict.REDISPATCH
    if retry_on_crash and num_attempts <= 1 and remaining_s > service_s and may_spend():
        return Verdict.RETRY_ALONE
    return Verdict.FAIL
