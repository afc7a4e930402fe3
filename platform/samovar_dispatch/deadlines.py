"""Deadlines of all live calls in buckets of one tick, so that adding and removing one costs a dictionary entry each.

A timer per call costs several times as much and gains nothing: an answer 10 ms after its deadline is as late as one
1 ms after it. This module does not know timers; a shell arms one for `next_due_s`.
"""

from __future__ import annotations

import heapq
from typing import Generic, Protocol, TypeVar

TICK_S = 0.01


class Timed(Protocol):
    """What can expire. deadline_s: monotonic seconds; it must not change while in the wheel."""

    deadline_s: float


T = TypeVar("T", bound=Timed)


class DeadlineWheel(Generic[T]):
    """Live calls by deadline, rounded up to the next tick."""

    __slots__ = ("_buckets", "_ticks")

    def __init__(self) -> None:
        self._buckets: dict[int, dict[T, None]] = {}
        self._ticks: list[int] = []

    def __len__(self) -> int:
        return sum(map(len, self._buckets.values()))

    def add(self, item: T) -> bool:
        """Watch `item`; return whether its tick is now the earliest, so that the timer must be armed anew."""
        tick = int(item.deadline_s / TICK_S) + 1
        bucket = self._buckets.get(tick)
        if bucket is not None:
            bucket[item] = None
            return False
        self._buckets[tick] = {item: None}
        heapq.heappush(self._ticks, tick)
        return self._ticks[0] == tick

    def discard(self, item: T) -> None:
        """Watch `item` no more. Idempotent."""
        bucket = self._buckets.get(int(item.deadline_s / TICK_S) + 1)
        if bucket is not None:
            bucket.pop(item, None)

    def expire(self, now_s: float) -> list[T]:
        """Take out and return every call whose tick has come."""
        expired: list[T] = []
        while self._ticks and self._ticks[0] * TICK_S <= now_s:
            expired += self._buckets.pop(heapq.heappop(self._ticks))
        return expired

    def next_due_s(self) -> float | None:
        """Return the next tick somebody waits at, monotonic seconds; empty ticks before it are dropped."""
        while self._ticks and not self._buckets[self._ticks[0]]:
            del self._buckets[heapq.heappop(self._ticks)]
        return self._ticks[0] * TICK_S if self._ticks else None
