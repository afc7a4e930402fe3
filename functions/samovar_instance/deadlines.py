"""When calls are late, by how much, and when to look again: pure arithmetic over monotonic seconds.

This module does not know timers, threads or what is done to a late call.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

CLAIM_RACE_S = 0.01  # a call being moved between two queues cannot be withdrawn for an instant: look again


class Timed(Protocol):
    """A call in flight; started_at_s is 0 until it has started."""

    deadline_s: float
    started_at_s: float


def overrun_s(calls: Iterable[Timed], now_s: float, *, runs_as_one: bool) -> float:
    """Return how long what runs is past its deadline, 0 if it is not.

    runs_as_one: what runs ends together (a single call, a batch), so it is late with its last member; otherwise any
    call that does not stop is late on its own.
    """
    past_s = [now_s - call.deadline_s for call in calls if call.started_at_s]
    if not past_s:
        return 0.0
    return max(0.0, min(past_s) if runs_as_one else max(past_s))


def next_look_s(calls: Iterable[Timed], now_s: float, grace_s: float) -> float:
    """Return when the next deadline passes, or the grace of one that has passed already; inf if there is none."""
    looks_s = (
        call.deadline_s if call.deadline_s > now_s else max(call.deadline_s + grace_s, now_s + CLAIM_RACE_S)
        for call in calls
    )
    return min(looks_s, default=float("inf"))
