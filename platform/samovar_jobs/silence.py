"""Who has fallen silent, judged by our own clock alone: a count of beats that has not changed for a whole lease.

Nobody's silence is judged by a clock that may be set, nor by a look that was interrupted: after one that came late
(Redis was away, or we were stopped ourselves) everybody has a whole lease again.

| look at | count of A | count of B | then
|---------|------------|------------|------------------------------
| 0.0 s   | 7          | 4          | both begin
| 1.0 s   | 8          | 4          | A renewed
| 3.0 s   | 10         | 4          | B has been silent for 3 s: silent
| 9.0 s   | 10         | 4          | 6 s since the last look: both begin anew

This module does not know Redis or the clock.
"""

from __future__ import annotations

from collections.abc import Mapping


class Silence:
    """lease_s: how long who does not beat is believed to live. max_gap_s: between two looks that follow each other."""

    def __init__(self, lease_s: float, max_gap_s: float) -> None:
        self._lease_s = lease_s
        self._max_gap_s = max_gap_s
        self._seen: dict[str, tuple[int, float]] = {}
        self._looked_s = float("-inf")

    def look(self, beats: Mapping[str, int], now_s: float) -> list[tuple[str, int]]:
        """Return who has been silent for a whole lease, with its count. now_s: monotonic seconds."""
        if now_s - self._looked_s > self._max_gap_s:
            self._seen.clear()
        self._looked_s = now_s
        before, self._seen = self._seen, {}
        for worker, count in beats.items():
            seen = before.get(worker)
            self._seen[worker] = seen if seen is not None and seen[0] == count else (count, now_s)
        return [(worker, count) for worker, (count, since_s) in self._seen.items() if now_s - since_s >= self._lease_s]
