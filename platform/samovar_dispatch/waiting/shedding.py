"""Whom to refuse so that others are served: pure decisions about one version's queue.

    Outlook.check   refuses at once who cannot meet its deadline; the less important, the more room they must leave
    Backup          notices a queue that stays late: then the newest go first, and whoever has waited too long is shed

Sources: CoDel (Nichols and Jacobson, "Controlling Queue Delay", ACM Queue 2012) and its form for servers with adaptive
LIFO (Maurer, "Fail at Scale", ACM Queue 2015). Ours differs in one point: a queue that gets shorter is a burst being
worked off, and is left alone. This module does not know calls, connections or clocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from samovar.errors import ConcurrencyLimited, LowPriority, Shed, WouldBeLate
from samovar_dispatch.waiting.pace import Arrival, Pace, wait_s
from samovar_dispatch.waiting.queue import retry_after_s

WAIT_MARGIN = 1.25  # what machines pause now and then; a queue that never runs dry loses nothing by it
DOUBT_MARGIN = 0.2  # the more run times differ, the less sure is their mean, and where many ask, each dip of it is used
SPREAD_MARGIN = 2.5  # mean deviations of a sum of independent run times: about two standard deviations
PATIENCE = (1.0, 1.0, 0.5, 0.25)  # by priority: the share of its time left that a newcomer may expect to need
MIN_TARGET_S = 0.5
TARGET_RUNS = 10
INTERVAL_TARGETS = 4
MIN_SHRINK = 10  # calls; in an interval at least INTERVAL_TARGETS * TARGET_RUNS leave, so what shrinks by less is fed


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a version can do from now on. lanes: working now, 0 while none is ready. arrivals: soonest first.

    free_s: when each lane comes free, seconds from now, soonest first; of many lanes, or of batches, only the soonest.
    is_limited: an adaptive limit holds lanes back.
    """

    pace: Pace
    lanes: float
    arrivals: Sequence[Arrival] = ()
    free_s: Sequence[float] = ()
    is_limited: bool = False

    def predicted_wait_s(self, num_ahead: int) -> float | None:
        """Return how long a newcomer would wait for its slot behind `num_ahead` others; None if nothing is known."""
        if not self.lanes and not self.arrivals:
            return None
        lane_s = self.pace.per_call_s
        if len(self.free_s) == self.lanes and not self.arrivals:
            rounds, lane = divmod(num_ahead, len(self.free_s))
            return self.free_s[lane] + rounds * lane_s
        return wait_s(num_ahead * lane_s, self.lanes, self.arrivals) + (self.free_s[0] if self.free_s else 0.0)

    def check(self, num_ahead: int, left_s: float, priority: int) -> None:
        """Return if a newcomer with `left_s` to its deadline may join `num_ahead` others.

        Raises: WouldBeLate; LowPriority if somebody more important could; ConcurrencyLimited if the limit is why.
        """
        predicted_s = self.predicted_wait_s(num_ahead)
        if predicted_s is None:
            return
        needed_s, may_need_s = self._needed_s(predicted_s, num_ahead, left_s), left_s * PATIENCE[priority]
        if needed_s <= may_need_s:
            return
        kind = self._kind(is_late=needed_s > left_s)
        raise kind(
            f"it would wait about {predicted_s:.2f} s and {self._run_text()}; with what both vary by that is "
            f"{needed_s:.2f} s, and it has {left_s:.2f} s"
            + (f", {may_need_s:.2f} s at its priority" if may_need_s < left_s else ""),
            retry_after_s=retry_after_s(needed_s - may_need_s),
            predicted_wait_s=round(predicted_s, 3),
        )

    def _needed_s(self, predicted_s: float, num_ahead: int, left_s: float) -> float:
        """Return by when a newcomer is answered, all but the unlucky ones."""
        pace = self.pace
        margin = WAIT_MARGIN + DOUBT_MARGIN * pace.dev_s / (pace.held_s or 1.0)
        num_runs = num_ahead if pace.streams else num_ahead + 1
        spread_s = SPREAD_MARGIN * pace.dev_s * sqrt(num_runs) / (self.lanes or 1.0)
        return predicted_s * margin + spread_s + pace.usual_s(left_s)

    def _run_text(self) -> str:
        mean_s, _ = self.pace.own_s
        return f"begin {mean_s:.2f} s later" if self.pace.streams else f"run for about {mean_s:.2f} s"

    def _kind(self, *, is_late: bool) -> type[Shed]:
        if not is_late:
            return LowPriority
        return ConcurrencyLimited if self.is_limited else WouldBeLate


class Backup:
    """Whether one version's queue stays late. is_backed_up: it did, and has not recovered."""

    __slots__ = ("_late_since_s", "_num_then", "is_backed_up")

    def __init__(self) -> None:
        self.is_backed_up = False
        self._late_since_s: float | None = None
        self._num_then = 0

    def look(self, now_s: float, waited_s: float, num_waiting: int, target_s: float) -> bool:
        """Return whether the queue is backed up at `now_s`.

        Args:
            waited_s: how long the first in line has waited, seconds, 0 when nobody waits.
            num_waiting: in the queue, >= 0. target_s: the longest wait that is nothing to worry about, > 0.
        """
        if waited_s < (target_s / 2 if self.is_backed_up else target_s):
            self.is_backed_up, self._late_since_s = False, None
        elif self._late_since_s is None:
            self._late_since_s, self._num_then = now_s, num_waiting
        elif now_s - self._late_since_s >= INTERVAL_TARGETS * target_s:
            self.is_backed_up = self.is_backed_up or num_waiting > self._num_then - MIN_SHRINK
            self._late_since_s, self._num_then = now_s, num_waiting
        return self.is_backed_up


def target_s(held_s: float) -> float:
    """Return the longest wait, seconds, that is nothing to worry about where a call takes `held_s`."""
    return max(MIN_TARGET_S, TARGET_RUNS * held_s)
