"""Which instance of a version does worse than its peers, and for how long it is left alone.

| an instance                                                       | is an outlier when
|-------------------------------------------------------------------|------------------------------------------------
| failed MAX_IN_A_ROW times, no answer in between                   | always
| answered a smaller share of its calls in the last INTERVAL_S than | MIN_PEERS of them had MIN_CALLS each, its share
|   its peers                                                       |   is below mean - STDEV_FACTOR · stdev, and
|                                                                   |   MIN_GAP below the mean

Calls that were there together fail together (a batch, a lost device): they count once in a row. At least half of a
version's instances stay, and at least one: if all fail, the version is at fault and that is its breaker's business.
An outlier is left alone for some seconds, doubled with each time up to LONGEST_S; one that did well for LONGEST_S
starts over. The rules are those of Envoy's outlier detection; MIN_GAP keeps an instance that answers 99 % from being
the outlier among some that answer 100 %.
This module does not know calls, connections or clocks.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from statistics import fmean, pstdev
from typing import TypeVar

MAX_IN_A_ROW = 5
INTERVAL_S = 10.0
MIN_PEERS = 5
MIN_CALLS = 100
STDEV_FACTOR = 1.9
MIN_GAP = 0.05
LONGEST_S = 300.0
MAX_FAILED_CHECKS = 3  # then somebody should replace it

K = TypeVar("K", bound=Hashable)


class Health:
    """What one instance's calls came to. in_a_row: failures since its last answer. num_ok, num_failed: since the last
    look of its version. num_ejections: in a row. failed_checks: since it was last ejected."""

    __slots__ = ("failed_checks", "failed_s", "in_a_row", "num_ejections", "num_failed", "num_ok", "returned_s")

    def __init__(self) -> None:
        self.in_a_row = self.num_ok = self.num_failed = 0
        self.num_ejections = self.failed_checks = 0
        self.failed_s = self.returned_s = float("-inf")

    def answered(self) -> None:
        """A call was answered."""
        self.num_ok += 1
        self.in_a_row = 0

    def failed(self, sent_s: float, now_s: float) -> None:
        """A call that was given to it at `sent_s` failed. Those that were there when another failed count once."""
        self.num_failed += 1
        if sent_s >= self.failed_s:
            self.in_a_row += 1
            self.failed_s = now_s

    def eject(self, now_s: float, first_s: float) -> float:
        """It is left alone from now on; return for how long, seconds. first_s: the first time."""
        if now_s - self.returned_s > LONGEST_S:
            self.num_ejections = 0
        self.num_ejections += 1
        self.failed_checks = 0
        return left_alone_s(self.num_ejections, first_s)

    def take_back(self, now_s: float) -> None:
        """It was found well: what was counted is forgotten."""
        self.in_a_row = self.num_ok = self.num_failed = self.failed_checks = 0
        self.returned_s = now_s


def left_alone_s(num_ejections: int, first_s: float) -> float:
    """Return how long an instance is left alone the `num_ejections`-th time in a row (>= 1), seconds."""
    return float(min(LONGEST_S, first_s * 2.0 ** min(num_ejections - 1, 16)))


def may_eject(num_serving: int, num_members: int) -> bool:
    """Return whether one of `num_serving` instances may go, of `num_members` that are there: half must stay."""
    return num_serving - 1 >= max(1, (num_members + 1) // 2)


def outliers(calls: Mapping[K, tuple[int, int]]) -> list[K]:
    """Return the instances whose share of answers is too far below their peers', worst first.

    calls: (answered, failed) by instance, in the interval.
    """
    shares = {one: ok / (ok + failed) for one, (ok, failed) in calls.items() if ok + failed >= MIN_CALLS}
    if len(shares) < MIN_PEERS:
        return []
    mean = fmean(shares.values())
    limit = min(mean - STDEV_FACTOR * pstdev(shares.values()), mean - MIN_GAP)
    return sorted((one for one, share in shares.items() if share < limit), key=shares.__getitem__)
