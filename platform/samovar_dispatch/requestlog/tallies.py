"""Traffic by version since it was last written: counts and histograms, cheap enough for every call.

This module does not know where they are written.
"""

from __future__ import annotations

import math

from samovar_dispatch.ask import CACHED, FALLBACK, SHADOW
from samovar_dispatch.call import Version
from samovar_storage.traffic import (
    BUCKETS_PER_DECADE,
    LOWEST_S,
    NUM_BUCKETS,
    Tally,
    TrafficSlice,
    outcome_of,
)

_LOWEST_LOG = math.log10(LOWEST_S)
_TOP = NUM_BUCKETS - 1


class _Counts:
    """A `Tally` in the making."""

    __slots__ = ("outcomes", "run", "total")

    def __init__(self) -> None:
        self.outcomes: dict[str, int] = {}
        self.total: dict[int, int] = {}
        self.run: dict[int, int] = {}

    def tally(self) -> Tally:
        return Tally(**self.outcomes, total=self.total, run=self.run)


class Tallies:
    """What was counted since `take` was last called, by ref: [calls, shadow copies]."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[_Counts, _Counts]] = {}

    def add(self, version: Version | None, status: int, marks: int, total_s: float, run_us: int) -> None:
        """Count one call that ended. version: the one it was for; None counts nothing."""
        if version is None:
            return
        pair = self._counts.get(version.ref)
        if pair is None:
            pair = self._counts[version.ref] = (_Counts(), _Counts())
        counts = pair[1] if marks & SHADOW else pair[0]
        if marks & (FALLBACK | CACHED):
            name = "fallback" if marks & FALLBACK else "cached"
        elif status == 200:
            name = "ok"
            bucket, total = _bucket(total_s), counts.total
            total[bucket] = total.get(bucket, 0) + 1
            bucket, run = _bucket(run_us * 1e-6), counts.run
            run[bucket] = run.get(bucket, 0) + 1
        else:
            name = outcome_of(status)
        counts.outcomes[name] = counts.outcomes.get(name, 0) + 1

    def take(self, gateway: str, at_s: float, span_s: float) -> list[TrafficSlice]:
        """Return a slice for each version that had traffic, and begin anew."""
        taken, self._counts = self._counts, {}
        return [
            TrafficSlice(gateway=gateway, ref=ref, at_s=at_s, span_s=span_s, calls=calls.tally(), shadow=shadow.tally())
            for ref, (calls, shadow) in taken.items()
        ]


def _bucket(seconds: float) -> int:
    """`traffic.bucket_of` with its constants at hand: this is on every call's path."""
    if seconds <= LOWEST_S:
        return 0
    bucket = int((math.log10(seconds) - _LOWEST_LOG) * BUCKETS_PER_DECADE)
    return bucket if bucket < _TOP else _TOP
