"""What goes into a batch, and when: pure decisions over the waiting items.

An item that finds the model idle is run at once. Right after a batch the callers it answered are likely to come back,
so a batch smaller than the last one may wait for them: until it is as large, or the first item has waited
`max_wait_ms`, or that long has passed since the batch ended, whichever comes first. A full batch never waits.
Which items: the oldest, or, where items have lengths, those that `ragged.py` chooses.
This module does not know threads, handlers or what an item is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from samovar.spec import BatchSpec
from samovar_instance.ragged import Waiting, choose


@dataclass(frozen=True, slots=True)
class LastBatch:
    """The batch before: its size (0 = none yet), when it ended, monotonic seconds, and how long it took, seconds."""

    size: int = 0
    ended_at_s: float = float("-inf")
    took_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Decision:
    """Start the items at the places `take` now; if none, look again at `wait_until_s` (None: only when one arrives)."""

    take: Sequence[int] = ()
    wait_until_s: float | None = None


def decide(now_s: float, waiting: Sequence[Waiting], spec: BatchSpec, last: LastBatch) -> Decision:
    """Return what an idle model should do.

    Args:
        now_s: monotonic seconds. waiting: items whose deadline has not passed, oldest first, queued jobs last.
        spec: limits of a batch. last: what was run before.
    Returns: as many items as fit, or until when to wait for more: never beyond the first item's `max_wait_ms` or any
        item's deadline.
    """
    if not waiting:
        return Decision()
    if spec.max_tokens is None:
        take: Sequence[int] = _oldest(waiting, spec)
        is_full = len(take) < len(waiting)
    else:
        # one that a batch leaves for the next must end before its deadline, too
        take = choose(waiting, spec, pressing_s=now_s + 2 * last.took_s)
        is_full = (len(take) + 1) * max(waiting[place].length for place in take) > spec.max_tokens
    if is_full or len(waiting) >= min(spec.max_size, last.size):
        return Decision(take)
    max_wait_s = spec.max_wait_ms / 1000
    deadline_s = min(item.deadline_s for item in waiting)
    wait_until_s = min(waiting[0].received_at_s + max_wait_s, last.ended_at_s + max_wait_s, deadline_s)
    return Decision(take) if now_s >= wait_until_s else Decision((), wait_until_s)


def _oldest(waiting: Sequence[Waiting], spec: BatchSpec) -> range:
    """Return the places of the first items, as many as fit."""
    count, cost = 0, 0.0
    for item in waiting:
        cost += item.cost
        if count == spec.max_size or (count and spec.max_cost is not None and cost > spec.max_cost):
            break
        count += 1
    return range(count)
