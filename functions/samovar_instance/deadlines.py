"""When calls are late, by how much, and when to look again: pure arithmetic over monotonic seconds.

This module does not know timers, threads or what is done to a late call.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

CLAIM_RACE_S = 0.01  # a call being moved between two queues cannot be withdrawn for an instant: look again


class Timed(Protocol):
    """A call in flight; started_at_s is 0 until it has started. has_heard: it was told to stop, and could listen."""

    deadline_s: float
    started_at_s: float
    has_heard: bool


def overrun_s(calls: Iterable[Timed], now_s: float, *, runs_as_one: bool) -> float:
    """Return how long the process runs what nobody wants, 0 while it does something that somebody wants.

    runs_as_one: what runs ends together (a single call, a batch), so it is late with its last member. Otherwise calls
    run side by side: one that was told to stop and does not is no reason to end its mates, and keeps its slot; but one
    that could not even be told holds up the loop, and them with it.
    """
    past_s = [(now_s - call.deadline_s, call.has_heard) for call in calls if call.started_at_s]
    if not past_s:
        return 0.0
    unwanted_s = min(seconds for seconds, _ in past_s)
    held_up_s = max((seconds for seconds, has_heard in past_s if not has_heard), default=0.0)
    return max(0.0, unwanted_s, 0.0 if runs_as_one else held_up_s)


def next_look_s(calls: Iterable[Timed], now_s: float, grace_s: float) -> float:
    """Return when the next deadline passes, or the grace of one that has passed already; inf if there is none."""
    looks_s = (
        call.deadline_s if call.deadline_s > now_s else max(call.deadline_s + grace_s, now_s + CLAIM_RACE_S)
        for call in calls
    )
    return min(looks_s, default=float("inf"))
