"""How a version's traffic went, in slices of about a second: counts by outcome and latency histograms.

Each gateway writes a slice per version and second while there is traffic (`sv:traffic:{ref}`); whoever judges a version
merges the slices of all gateways since some time. Everything but `write_slices` and `read_slices` is pure.
This module does not know who judges, or how calls are run.

| a call ended                           | counted as
|----------------------------------------|-----------------------------------------------------------------------
| with an answer of the version          | ok, and in the histograms
| status 4xx (not 499)                   | client: the caller's fault
| status 5xx (not 503, 504)              | failed: the version's fault, mostly
| status 503                             | shed: queue full, breaker open, no capacity
| status 504                             | late
| the caller left                        | cancelled
| a fallback answered instead            | fallback: the version did not answer; in none of the others
| the cache answered                     | cached: the version was not asked; in none of the others

A shadow copy is counted the same way, but in the slice's `shadow`, never in `calls`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import redis.asyncio as redis_async

from samovar.values import Struct
from samovar_storage import keys
from samovar_storage.failures import translating
from samovar_storage.readable import readable
from samovar_storage.records import dumps

BUCKETS_PER_DECADE = 32
LOWEST_S = 1e-5
NUM_BUCKETS = 9 * BUCKETS_PER_DECADE  # 10 µs to 10,000 s
PERCENTILE_ERROR = 10 ** (1 / BUCKETS_PER_DECADE) - 1  # a percentile is at most this share off: 7.5 %

OUTCOMES = ("ok", "client", "failed", "shed", "late", "cancelled", "fallback", "cached")


class Tally(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Calls by how they ended (see the module's table), and how long the `ok` ones took.

    total: bucket → calls, from submission to answer. run: bucket → calls, time in the handler alone.
    """

    ok: int = 0
    client: int = 0
    failed: int = 0
    shed: int = 0
    late: int = 0
    cancelled: int = 0
    fallback: int = 0
    cached: int = 0
    total: dict[int, int] = msgspec.field(default_factory=dict)
    run: dict[int, int] = msgspec.field(default_factory=dict)

    @property
    def num_calls(self) -> int:
        """Calls of every outcome."""
        return sum(getattr(self, name) for name in OUTCOMES)


class TrafficSlice(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one gateway saw of one version within [at_s, at_s + span_s), unix seconds.

    calls: what callers asked. shadow: copies whose answers nobody got.
    """

    gateway: str
    ref: str
    at_s: float
    span_s: float
    calls: Tally = Tally()
    shadow: Tally = Tally()


def outcome_of(status: int) -> str:
    """Return the name of the `Tally` field a call with this HTTP status (499: the caller left) is counted in."""
    if status < 400:
        return "ok"
    return {499: "cancelled", 503: "shed", 504: "late"}.get(status, "client" if status < 500 else "failed")


def bucket_of(seconds: float) -> int:
    """Return the histogram bucket, within [0, NUM_BUCKETS), of a time; times beyond the ends go to the end buckets."""
    if seconds <= LOWEST_S:
        return 0
    return min(NUM_BUCKETS - 1, int(math.log10(seconds / LOWEST_S) * BUCKETS_PER_DECADE))


def bounds_s(bucket: int) -> tuple[float, float]:
    """Return the shortest and the longest time of a bucket, seconds."""
    return _edge_s(bucket), _edge_s(bucket + 1)


def percentile_s(histogram: Mapping[int, int], q: float) -> float | None:
    """Return the time, seconds, that a share `q` within [0, 1] of the calls did not exceed; None without calls.

    Interpolated within its bucket: at most PERCENTILE_ERROR of the true value off.
    """
    rank = q * sum(histogram.values())
    below = 0
    for bucket, count in sorted(histogram.items()):
        if count and below + count >= rank:
            low_s, high_s = bounds_s(bucket)
            return float(low_s * (high_s / low_s) ** max(0.0, (rank - below) / count))
        below += count
    return None


def merge_histograms(histograms: Iterable[Mapping[int, int]]) -> dict[int, int]:
    """Return bucket → calls summed over all, in order of time."""
    merged: dict[int, int] = {}
    for histogram in histograms:
        for bucket, count in histogram.items():
            merged[bucket] = merged.get(bucket, 0) + count
    return dict(sorted(merged.items()))


def merge(tallies: Iterable[Tally]) -> Tally:
    """Return the sum of tallies; that of none is empty."""
    listed = list(tallies)
    counts = {name: sum(getattr(tally, name) for tally in listed) for name in OUTCOMES}
    return Tally(
        **counts,
        total=merge_histograms(tally.total for tally in listed),
        run=merge_histograms(tally.run for tally in listed),
    )


async def write_slices(redis: redis_async.Redis, slices: Sequence[TrafficSlice]) -> None:
    """Each slice ends its version's stream, which lives for `keys.TRAFFIC_LIFETIME_S`; one round trip for all."""
    if not slices:
        return
    with translating("the traffic"):
        async with redis.pipeline(transaction=False) as pipe:
            for one in slices:
                key = keys.traffic(one.ref)
                pipe.xadd(key, {"slice": dumps(one)}, maxlen=keys.MAX_TRAFFIC_SLICES, approximate=True)
                pipe.expire(key, keys.TRAFFIC_LIFETIME_S)
            await pipe.execute()


async def read_slices(redis: redis_async.Redis, ref: str, since_s: float) -> list[TrafficSlice]:
    """Return the slices of a version, of all gateways, that were written at or after `since_s` (unix), oldest first.

    A slice is written up to about a second after its calls ended.
    """
    with translating("the traffic"):
        rows: Any = await redis.xrange(keys.traffic(ref), min=max(0, int(since_s * 1000)))
    found = (readable(f"a traffic slice of {ref}", fields.get(b"slice"), TrafficSlice) for _, fields in rows)
    return [one for one in found if one is not None]


def _edge_s(bucket: int) -> float:
    return LOWEST_S * float(10 ** (bucket / BUCKETS_PER_DECADE))
