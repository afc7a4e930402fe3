"""What goes into a batch, and when: pure decisions over the waiting items.

An item that finds the model idle is run at once. Right after a batch the callers it answered are likely to come back,
so a batch smaller than the last one may wait for them: until it is as large, or the first item has waited
`max_wait_ms`, or that long has passed since the batch ended, whichever comes first. A full batch never waits.
This module does not know threads, handlers or what an item is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from samovar.spec import BatchSpec


class Waiting(Protocol):
    """An item, oldest first. Monotonic seconds; cost in the function's own unit, >= 0."""

    received_at_s: float
    deadline_s: float
    cost: float


@dataclass(frozen=True, slots=True)
class LastBatch:
    """The batch before: its size (0 = none yet) and when it ended, monotonic seconds."""

    size: int = 0
    ended_at_s: float = float("-inf")


@dataclass(frozen=True, slots=True)
class Decision:
    """Start the first `take` items now; if 0, look again at `wait_until_s` (None: only when an item arrives)."""

    take: int
    wait_until_s: float | None = None


def decide(now_s: float, waiting: Iterable[Waiting], spec: BatchSpec, last: LastBatch) -> Decision:
    """Return what an idle model should do.

    Args:
        now_s: monotonic seconds. waiting: items whose deadline has not passed, oldest first.
        spec: limits of a batch. last: what was run before.
    Returns: as many items as fit, or until when to wait for more: never beyond the first item's `max_wait_ms` or any
        item's deadline.
    """
    count, cost, is_full = 0, 0.0, False
    first_received_s, deadline_s = now_s, float("inf")
    for item in waiting:
        if count == spec.max_size or (count and spec.max_cost is not None and cost + item.cost > spec.max_cost):
            is_full = True
            break
        if not count:
            first_received_s = item.received_at_s
        deadline_s = min(deadline_s, item.deadline_s)
        count, cost = count + 1, cost + item.cost
    if not count:
        return Decision(0)
    if is_full or count >= min(spec.max_size, last.size):
        return Decision(count)
    max_wait_s = spec.max_wait_ms / 1000
    wait_until_s = min(first_received_s + max_wait_s, last.ended_at_s + max_wait_s, deadline_s)
    return Decision(count) if now_s >= wait_until_s else Decision(0, wait_until_s)
