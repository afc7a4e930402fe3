"""When a version whose boots fail may try again: 1, 2, 4 … 60 s. This module does not know why they fail."""

from __future__ import annotations

FIRST_S = 1.0
LONGEST_S = 60.0


def delay_s(num_failures: int) -> float:
    """Return the seconds to wait after `num_failures` failed boots in a row (>= 1)."""
    return float(min(LONGEST_S, FIRST_S * 2 ** min(num_failures - 1, 16)))


class Backoff:
    """Failed boots in a row, per version."""

    def __init__(self) -> None:
        self._failures: dict[str, tuple[int, float]] = {}

    def fail(self, ref: str, now_s: float) -> tuple[int, float]:
        """Count one more failed boot of `ref`; return (failures in a row, monotonic time of the next try).

        Boots that failed side by side count once: a failure within the delay of the last one changes nothing.
        """
        num, retry_at_s = self._failures.get(ref, (0, 0.0))
        if num and now_s < retry_at_s:
            return num, retry_at_s
        self._failures[ref] = (num + 1, now_s + delay_s(num + 1))
        return self._failures[ref]

    def succeed(self, ref: str) -> None:
        """Forget the failures of `ref`."""
        self._failures.pop(ref, None)

    def retry_at_s(self, ref: str) -> float:
        """Return when `ref` may boot again, 0 if it may now."""
        return self._failures.get(ref, (0, 0.0))[1]
