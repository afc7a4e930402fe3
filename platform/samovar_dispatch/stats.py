"""Plain counters of one version, cheap enough to keep on every call; exporters read them when asked.

This module does not know Prometheus.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

from samovar_dispatch.ask import NATIVE

LATENCY_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)


class VersionStats:
    """outcomes: ended calls by protocol and code, "ok" for answers. latency_counts: calls per bucket of
    LATENCY_BOUNDS_S, the last one beyond all; not cumulative. run_sum_s: seconds in handlers. cold_starts: calls that
    had to wait for a boot. cache: asks of a version with a cache, by what became of them (hit, collapsed, miss,
    bypass). fallbacks: asks whose call came to nothing, by the link that answered ("none": no link did). mirrored:
    copies of other versions' calls, by how their answers compare."""

    __slots__ = (
        "cache",
        "cold_starts",
        "ejections",
        "fallbacks",
        "latency_counts",
        "latency_sum_s",
        "mirrored",
        "outcomes",
        "queue_sum_s",
        "redispatched",
        "retried",
        "retries_refused",
        "run_sum_s",
        "sheds",
        "submitted",
    )

    def __init__(self) -> None:
        self.outcomes: dict[str, dict[str, int]] = {NATIVE: {"ok": 0}}
        self.sheds: Counter[tuple[str, int]] = Counter()
        self.cache: dict[str, int] = {}
        self.mirrored: dict[str, int] = {}
        self.fallbacks: dict[str, int] = {}
        self.latency_counts = [0] * (len(LATENCY_BOUNDS_S) + 1)
        self.latency_sum_s = self.queue_sum_s = self.run_sum_s = 0.0
        self.submitted = self.cold_starts = self.redispatched = self.retried = 0
        self.retries_refused = self.ejections = 0

    def ended(self, protocol: str, code: str, latency_s: float) -> None:
        """Count one call that came by `protocol` and ended with `code` after `latency_s`."""
        outcomes = self.outcomes.get(protocol)
        if outcomes is None:
            outcomes = self.outcomes[protocol] = {}
        outcomes[code] = outcomes.get(code, 0) + 1
        self.latency_counts[bisect_left(LATENCY_BOUNDS_S, latency_s)] += 1
        self.latency_sum_s += latency_s

    def shed(self, code: str, priority: int) -> None:
        """Count one call that was refused before it ran, so that others are served."""
        self.sheds[code, priority] += 1
