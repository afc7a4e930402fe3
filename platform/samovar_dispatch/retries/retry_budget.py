"""How much extra work may be made of calls: at most a share of those of the last ten seconds, plus a small floor.

A retry helps when one instance fails and hurts when all do: without a bound every failing call becomes two, just when
there is least to give. So retries are paid for by calls, as in Finagle's RetryBudget: each call adds `share` of a
token, which is worth nothing after WINDOW_S. The floor lets functions with little traffic retry at all.

| calls in the last 10 s | retries among them, share 0.2, floor 3/s | hedges, share 0.02, no floor
|------------------------|------------------------------------------|-----------------------------
| 0                      | 30                                       | 0
| 100                    | 30                                       | 2
| 1,000                  | 200                                      | 20

This module does not know calls or clocks.
"""

from __future__ import annotations

WINDOW_S = 10  # in buckets of one second
RETRY_SHARE, RETRY_FLOOR_PER_S = 0.2, 3.0
HEDGE_SHARE = 0.02


class Budget:
    """share: extra work per call, within [0, 1]. floor_per_s: extra work that is always allowed, >= 0."""

    __slots__ = ("_calls", "_extra", "_floor", "_second", "_share")

    def __init__(self, share: float, floor_per_s: float = 0.0) -> None:
        self._share = share
        self._floor = floor_per_s * WINDOW_S
        self._second = -1
        self._calls = [0] * WINDOW_S
        self._extra = [0] * WINDOW_S

    def called(self, now_s: float) -> None:
        """One call was taken in. now_s: seconds >= 0, never going back."""
        second = int(now_s)
        if second != self._second:
            self._advance(second)
        self._calls[second % WINDOW_S] += 1

    def spend(self, now_s: float) -> bool:
        """Return whether one more piece of extra work may be done now; if so, it is counted."""
        second = int(now_s)
        if second != self._second:
            self._advance(second)
        if sum(self._extra) + 1 > max(self._floor, self._share * sum(self._calls)):
            return False
        self._extra[second % WINDOW_S] += 1
        return True

    def _advance(self, second: int) -> None:
        """Empty the buckets of the seconds since the last look."""
        for passed in range(max(self._second + 1, second - WINDOW_S + 1), second + 1):
            self._calls[passed % WINDOW_S] = self._extra[passed % WINDOW_S] = 0
        self._second = second
