"""The order of waiting calls of one version: first in, first out, bounded; what comes back goes to the head, in order.

This module does not know instances, slots or clocks: who expires is told from outside through `remove`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Generic, Protocol, TypeVar

from samovar.errors import QueueFull

MIN_RETRY_AFTER_S = 1.0
MAX_RETRY_AFTER_S = 60.0


class Ordered(Protocol):
    """What can wait: `seq` is its place in the order of admission, unique per queue."""

    seq: int


T = TypeVar("T", bound=Ordered)


class CallQueue(Generic[T]):
    """A bounded FIFO with removal from the middle in constant time.

    max_queue: how many may wait, >= 0. Calls that were admitted once and come back are never refused.
    """

    __slots__ = ("_items", "max_queue")

    def __init__(self, max_queue: int) -> None:
        self.max_queue = max_queue
        self._items: OrderedDict[int, T] = OrderedDict()

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(list(self._items.values()))

    def push(self, item: T, retry_after_s: float) -> None:
        """Put `item` at the tail. Raises QueueFull, which carries `retry_after_s`, when max_queue already wait."""
        if len(self._items) >= self.max_queue:
            raise QueueFull(
                f"{len(self._items)} calls are waiting already, which is the limit", retry_after_s=retry_after_s
            )
        self._items[item.seq] = item

    def put_back(self, items: Iterable[T]) -> None:
        """Put calls that never started back at the head, in their order of admission, the bound notwithstanding."""
        returning = sorted(items, key=lambda item: item.seq)
        if not returning:
            return
        last = returning[-1].seq
        while self._items and next(iter(self._items)) < last:
            returning.append(self._items.popitem(last=False)[1])
        returning.sort(key=lambda item: item.seq)
        for item in reversed(returning):
            self._items[item.seq] = item
            self._items.move_to_end(item.seq, last=False)

    def pop(self) -> T:
        """Take the head. Raises KeyError when nobody waits."""
        return self._items.popitem(last=False)[1]

    def remove(self, item: T) -> bool:
        """Take `item` out wherever it stands; return whether it was waiting."""
        return self._items.pop(item.seq, None) is not None


def retry_after_s(num_waiting: int, num_slots: int, service_s: float) -> float:
    """Return when a refused caller may try again, in seconds within [1, 60].

    Args:
        num_waiting: calls in front of it, >= 0.
        num_slots: slots of all ready instances, 0 while none is ready.
        service_s: mean time of a call in its slot, seconds, 0 when unknown.
    """
    expected_s = num_waiting * service_s / num_slots if num_slots else MIN_RETRY_AFTER_S
    return min(max(expected_s, MIN_RETRY_AFTER_S), MAX_RETRY_AFTER_S)
