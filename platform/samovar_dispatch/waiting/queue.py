"""The order of waiting calls of one version: by priority, then first in, first out; bounded in calls and in bytes.

    high, normal    take turns while both wait: HIGH_TURNS of high, then one of normal
    low             only when neither of those waits
    background      only when nobody else waits

Newest first within a priority on request (`shedding.Backup` says when). What comes back goes to the head, in order.
When the queue is full, somebody more important takes the place of the newest of the least important.
This module does not know instances, slots or clocks: who expires is told from outside through `remove`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Generic, Protocol, TypeVar

from samovar.errors import QueueFull

MIN_RETRY_AFTER_S = 1.0
MAX_RETRY_AFTER_S = 60.0
NUM_PRIORITIES = 4
HIGH_TURNS = 4
MAX_COUNTED = 1000  # whoever asks for a place looks no further


class Ordered(Protocol):
    """What can wait. seq: its place in the order of admission, unique per queue. submitted_s: when it was admitted."""

    seq: int
    submitted_s: float

    @property
    def priority(self) -> int:
        """From 0, the most important, to NUM_PRIORITIES - 1."""

    @property
    def num_bytes(self) -> int:
        """What it holds in memory, >= 0."""


T = TypeVar("T", bound=Ordered)


class Backlog:
    """The bytes of bodies that wait in this process, over all queues and those being read. max_bytes: their bound."""

    __slots__ = ("max_bytes", "num_bytes")

    def __init__(self, max_bytes: float = float("inf")) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0

    def require(self, num_bytes: int) -> None:
        """Return if `num_bytes` more may wait. Raises QueueFull."""
        if self.num_bytes + num_bytes > self.max_bytes:
            raise QueueFull(
                f"bodies of {self.num_bytes} bytes are waiting already, and {num_bytes} more are over the limit",
                retry_after_s=MIN_RETRY_AFTER_S,
            )

    @contextmanager
    def holding(self, num_bytes: int) -> Iterator[None]:
        """Count `num_bytes` for as long as the context lasts. Raises QueueFull, counting nothing."""
        self.require(num_bytes)
        self.num_bytes += num_bytes
        try:
            yield
        finally:
            self.num_bytes -= num_bytes


class CallQueue(Generic[T]):
    """A bounded queue with removal from the middle in constant time.

    max_queue: how many may wait, >= 0. Calls that were admitted once and come back are never refused.
    """

    __slots__ = ("_backlog", "_levels", "_num_high", "_num_waiting", "max_queue")

    def __init__(self, max_queue: int, backlog: Backlog | None = None) -> None:
        self.max_queue = max_queue
        self._backlog = backlog or Backlog()
        self._levels: list[OrderedDict[int, T]] = [OrderedDict() for _ in range(NUM_PRIORITIES)]
        self._num_waiting = 0
        self._num_high = 0  # turns of high in a row

    def __len__(self) -> int:
        return self._num_waiting

    def __iter__(self) -> Iterator[T]:
        return iter([item for level in self._levels for item in level.values()])

    def push(self, item: T, retry_after_s: float, *, newest_first: bool = False) -> T | None:
        """Put `item` at the tail; return who had to make room for it, if somebody had to.

        newest_first: rather than the newcomer, the oldest of its priority has to go when nobody is less important.
        Raises: QueueFull, which carries `retry_after_s`, when max_queue wait that need not make room.
        """
        self._backlog.require(item.num_bytes)
        evicted = None
        if self._num_waiting >= self.max_queue:
            evicted = self._evict_for(item.priority, newest_first=newest_first)
            if evicted is None:
                raise QueueFull(
                    f"{self._num_waiting} calls are waiting already, which is the limit", retry_after_s=retry_after_s
                )
        self._levels[item.priority][item.seq] = item
        self._count(1, item)
        return evicted

    def put_back(self, items: Iterable[T]) -> None:
        """Put calls that never started back at the head, in their order of admission, the bound notwithstanding."""
        returning: list[list[T]] = [[] for _ in self._levels]
        for item in items:
            returning[item.priority].append(item)
            self._count(1, item)
        for level, back in zip(self._levels, returning, strict=True):
            if back:
                _put_back(level, back)

    def pop(self, *, newest: bool = False) -> T:
        """Take whoever is next: of its priority the oldest, or the `newest`. Raises KeyError when nobody waits."""
        priority = self._next_priority()
        self._num_high = self._num_high + 1 if priority == 0 else 0
        _, item = self._levels[priority].popitem(last=newest)
        self._count(-1, item)
        return item

    def remove(self, item: T) -> bool:
        """Take `item` out wherever it stands; return whether it was waiting."""
        if self._levels[item.priority].pop(item.seq, None) is None:
            return False
        self._count(-1, item)
        return True

    def place(self, item: T) -> int | None:
        """Return how many are served before `item` if nobody comes and each priority waits for those above; at most
        MAX_COUNTED, None if it does not wait here."""
        level = self._levels[item.priority]
        if item.seq not in level:
            return None
        num_above = sum(map(len, self._levels[: item.priority]))
        num_older = next((at for at, seq in enumerate(islice(level, MAX_COUNTED)) if seq == item.seq), MAX_COUNTED)
        return min(num_above + num_older, MAX_COUNTED)

    def oldest(self) -> T | None:
        """Return who has waited longest among the most important that wait; None when nobody waits."""
        return next((next(iter(level.values())) for level in self._levels if level), None)

    def take_older(self, submitted_s: float) -> list[T]:
        """Take out everybody admitted before `submitted_s`, the oldest of each priority first."""
        taken: list[T] = []
        for level in self._levels:
            while level and (item := next(iter(level.values()))).submitted_s < submitted_s:
                del level[item.seq]
                self._count(-1, item)
                taken.append(item)
        return taken

    def num_ahead(self, priority: int) -> int:
        """Return how many of those that wait now go before a newcomer of `priority`, first in, first out."""
        high, normal, low, background = map(len, self._levels)
        if priority == 0:
            return high + min(normal, high // HIGH_TURNS)
        if priority == 1:
            return normal + min(high, HIGH_TURNS * (normal + 1))
        return high + normal + low + (background if priority == NUM_PRIORITIES - 1 else 0)

    def _next_priority(self) -> int:
        high, normal = self._levels[0], self._levels[1]
        if high and not (normal and self._num_high >= HIGH_TURNS):
            return 0
        if normal:
            return 1
        return 2 if self._levels[2] else 3

    def _evict_for(self, priority: int, *, newest_first: bool) -> T | None:
        evicted = None
        for level in self._levels[:priority:-1]:
            if level:
                evicted = level.popitem()[1]
                break
        else:
            if newest_first and self._levels[priority]:
                evicted = self._levels[priority].popitem(last=False)[1]
        if evicted is not None:
            self._count(-1, evicted)
        return evicted

    def _count(self, sign: int, item: T) -> None:
        self._num_waiting += sign
        self._backlog.num_bytes += sign * item.num_bytes


def _put_back(level: OrderedDict[int, T], back: list[T]) -> None:
    last = max(item.seq for item in back)
    while level and next(iter(level)) < last:
        back.append(level.popitem(last=False)[1])
    back.sort(key=lambda item: item.seq)
    for item in reversed(back):
        level[item.seq] = item
        level.move_to_end(item.seq, last=False)


def retry_after_s(expected_s: float) -> float:
    """Return when a refused caller may try again, in seconds within [1, 60], for an expected wait in seconds."""
    return min(max(expected_s, MIN_RETRY_AFTER_S), MAX_RETRY_AFTER_S)
