"""How many blank instances to keep: the target follows recent claims.

This module does not know which version claimed a blank, nor how one is forked.
"""

from __future__ import annotations

from collections import deque

MEMORY_S = 300.0  # claims older than this say nothing about the next burst
BURST_S = 2.0  # claims this close together need their blanks at the same time: a refill takes longer


def blank_target(claims: deque[float], now_s: float, min_blanks: int, max_blanks: int) -> int:
    """Return how many blanks to keep ready.

    Args:
        claims: monotonic times at which a blank was claimed, oldest first; those older than MEMORY_S are dropped.
        now_s: monotonic seconds.
        min_blanks, max_blanks: bounds, 0 <= min <= max.
    Returns: the largest number of claims seen within any BURST_S of the last MEMORY_S, within the bounds.
    """
    while claims and claims[0] < now_s - MEMORY_S:
        claims.popleft()
    largest, left = 0, 0
    times = list(claims)
    for right, at_s in enumerate(times):
        while times[left] < at_s - BURST_S:
            left += 1
        largest = max(largest, right - left + 1)
    return max(min_blanks, min(max_blanks, largest))
