"""Is a canary worse than the stable version? A sequential test of error rate and latency, valid at every look.

Calls are compared second by second, never across them, so a rush hour or a slow store falls on both. In each second,
given how many calls each side had and how many of all were bad (failed, or slower than a threshold), an equally good
canary has as many of the bad ones as a draw without replacement gives (the hypergeometric law), whatever the rate. The
e-value of the second is how much better a law with odds `w` > 1 for the canary explains its bad calls; its mean is 1 at
most if the canary is not worse. The product over the seconds is then a test martingale: the chance that it ever passes
1 / alpha, however often it is looked at, is at most alpha (Ville's inequality). Products for several odds (and, for
latency, thresholds) are averaged, which keeps that bound.

| test    | bad is                                              | odds                 | alpha | one second adds
|---------|-----------------------------------------------------|----------------------|-------|----------------
| errors  | failed, late, shed, or answered by a fallback       | 1.5, 2, 4, 8, 16, 32 | 0.005 | e^2.5 at most
| latency | slower than the 50th, 80th, 95th percentile of the  | 1.5, 2.5, 5          | 0.005 | e^0.7 at most
|         | stable version in the seconds before; a canary's    |                      |       |
|         | calls count as 15 % (and 1 ms) faster than they were|                      |       |

So a canary that is as good is rolled back with probability 0.01 at most over its whole life, and one that is slower by
less than the margin is not regarded as worse. The cap makes bad luck that comes in one piece (an instance that died, a
core that was taken away for a second) weigh little: an error regression needs three bad seconds, a latency regression a
dozen. Capping only lowers e-values, so the bound holds. Power, simulated in the tests: 5 % errors against none, and
30 % latency with a spread (standard deviation) of 25 %, at 10 canary calls a second or more: found within 60 s with
probability 0.95 or more.

Sources: J. Ville, Étude critique de la notion de collectif, 1939; R. Turner, A. Ly, P. Grünwald, Generic E-variables
for exact sequential k-sample tests that allow for optional stopping, 2021 (two proportions, blocks of data); A. Ramdas,
P. Grünwald, V. Vovk, G. Shafer, Game-theoretic statistics and safe anytime-valid inference, 2023.
This module does not know Redis, clocks or routes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from samovar_storage.traffic import BUCKETS_PER_DECADE, Tally, bounds_s, bucket_of, percentile_s

ALPHA_ERRORS = ALPHA_LATENCY = 0.005
ERROR_ODDS = (1.5, 2.0, 4.0, 8.0, 16.0, 32.0)
LATENCY_ODDS = (1.5, 2.5, 5.0)
QUANTILES = (0.5, 0.8, 0.95)
ERROR_CAP, LATENCY_CAP = 2.5, 0.7  # natural logarithms
MARGIN = 10 ** (2 / BUCKETS_PER_DECADE)  # two buckets: 15.5 %
MARGIN_S = 0.001
MIN_CALLS = 100  # of the canary, before it may be promoted
DOUBT = math.log(20.0)  # evidence above this delays a promotion
MIN_BOOT_FAILURES = 2
MAX_REASON = 200  # characters of a boot's error that a verdict repeats
MEMORY = 0.9  # of the histogram that thresholds come from, per second
MIN_PAST = 50.0  # calls in it, before there are thresholds

Histogram = Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Side:
    """One version in some span of time. bad: calls that failed; latency: bucket → calls with an answer."""

    calls: int = 0
    bad: int = 0
    latency: Histogram = field(default_factory=dict)

    def __add__(self, other: Side) -> Side:
        """Return both spans together."""
        return Side(self.calls + other.calls, self.bad + other.bad, _sum(self.latency, other.latency, 1.0))


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the seconds so far say. errors, latency: logarithm of the e-value so far, per odds (and threshold).

    canary, stable: all calls so far. past: the stable version's recent latency, newer seconds weigh more.
    """

    errors: tuple[float, ...] = (0.0,) * len(ERROR_ODDS)
    latency: tuple[float, ...] = (0.0,) * (len(LATENCY_ODDS) * len(QUANTILES))
    canary: Side = Side()
    stable: Side = Side()
    past: Histogram = field(default_factory=dict)

    @property
    def log_errors(self) -> float:
        """Logarithm of the e-value against "not more errors"."""
        return _log_mean(self.errors)

    @property
    def log_latency(self) -> float:
        """Logarithm of the e-value against "not slower"."""
        return _log_mean(self.latency)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a canary now. rule: what decided; reason: one sentence; inputs: the numbers behind it."""

    action: Literal["wait", "promote", "rollback"]
    rule: str
    reason: str
    inputs: dict[str, float]


def side_of(tallies: Iterable[Tally]) -> Side:
    """Return what counts of a version's traffic: not the callers' own mistakes, nor what a cache answered."""
    found = Side()
    for tally in tallies:
        bad = tally.failed + tally.late + tally.shed + tally.fallback
        found += Side(tally.ok + bad, bad, tally.total)
    return found


def weigh(evidence: Evidence, canary: Side, stable: Side) -> Evidence:
    """Return the evidence after one more second, in which both sides had these calls."""
    errors, latency = evidence.errors, evidence.latency
    if canary.calls and stable.calls:
        found = _log_e_values(canary.calls, stable.calls, canary.bad, stable.bad, ERROR_ODDS, ERROR_CAP)
        errors = tuple(before + new for before, new in zip(errors, found, strict=True))
        if sum(evidence.past.values()) >= MIN_PAST:
            slow = _slower(_discounted(canary.latency), stable.latency, evidence.past)
            latency = tuple(before + new for before, new in zip(latency, slow, strict=True))
    past = _sum(stable.latency, evidence.past, MEMORY)
    return Evidence(errors, latency, evidence.canary + canary, evidence.stable + stable, past)


def judge(
    evidence: Evidence, age_s: float, bake_s: float, num_boot_failures: int = 0, boot_failure: str = ""
) -> Verdict:
    """Return what becomes of the canary.

    Args:
        age_s: since it is on trial, seconds. bake_s: how long it has to hold.
        num_boot_failures: boots in a row that failed, of a canary without a ready instance; boot_failure: why the last.
    """
    inputs = _inputs(evidence, age_s)
    if num_boot_failures >= MIN_BOOT_FAILURES:
        reason = f"it does not come up: {num_boot_failures} boots failed in a row: {boot_failure[:MAX_REASON]}"
        return Verdict("rollback", "boot", reason.removesuffix(": "), inputs)
    if evidence.log_errors >= -math.log(ALPHA_ERRORS):
        rates = f"{_rate(evidence.canary):.2%} of its calls fail, {_rate(evidence.stable):.2%} of the stable version's"
        return Verdict("rollback", "errors", f"{rates} (e-value {_power(evidence.log_errors)})", inputs)
    if evidence.log_latency >= -math.log(ALPHA_LATENCY):
        times = f"p50 {inputs['canary_p50_ms']:.1f} ms against {inputs['stable_p50_ms']:.1f}"
        times += f", p95 {inputs['canary_p95_ms']:.1f} against {inputs['stable_p95_ms']:.1f}"
        return Verdict("rollback", "latency", f"it is slower: {times} (e-value {_power(evidence.log_latency)})", inputs)
    if age_s < bake_s:
        return Verdict("wait", "baking", f"{bake_s - age_s:.0f} s to go", inputs)
    if evidence.canary.calls < MIN_CALLS:
        reason = f"{evidence.canary.calls} calls so far, {MIN_CALLS} are needed"
        return Verdict("wait", "few calls", reason, inputs)
    if max(evidence.log_errors, evidence.log_latency) > DOUBT:
        return Verdict("wait", "doubt", "it looks worse, but not surely so", inputs)
    reason = f"no regression in {evidence.canary.calls} calls over {age_s:.0f} s"
    return Verdict("promote", "baked", reason, inputs)


def _log_e_values(
    canary_calls: int, stable_calls: int, canary_bad: int, stable_bad: int, odds: Sequence[float], cap: float
) -> list[float]:
    """Return, for each odds, log (odds ^ bad calls of the canary / its mean if both were as good), at most `cap`.

    The mean of the e-value is 1 at odds ratio 1 and less below it; a cap lowers it further.
    """
    bad = canary_bad + stable_bad
    if not bad:
        return [0.0] * len(odds)
    calls = canary_calls + stable_calls
    at_least, at_most = max(0, bad - stable_calls), min(bad, canary_calls)
    weights = [
        _log_choose(canary_calls, hit) + _log_choose(stable_calls, bad - hit) for hit in range(at_least, at_most + 1)
    ]
    total = _log_choose(calls, bad)
    found = []
    for odd in odds:
        log_odd = math.log(odd)
        terms = [weight + hit * log_odd for hit, weight in enumerate(weights, at_least)]
        found.append(min(cap, canary_bad * log_odd - (_log_sum(terms) - total)))
    return found


def _slower(canary: Histogram, stable: Histogram, past: Histogram) -> list[float]:
    """Return the log e-values of one second's latencies, thresholds outermost."""
    found: list[float] = []
    num_canary, num_stable = round(sum(canary.values())), round(sum(stable.values()))
    for quantile in QUANTILES:
        threshold = _quantile(past, quantile)
        slow_canary, slow_stable = (round(sum(n for b, n in h.items() if b > threshold)) for h in (canary, stable))
        found += _log_e_values(num_canary, num_stable, slow_canary, slow_stable, LATENCY_ODDS, LATENCY_CAP)
    return found


def _discounted(latency: Histogram) -> Histogram:
    """Return the histogram of calls that were faster by the margin."""
    found: dict[int, float] = {}
    for bucket, calls in latency.items():
        low_s, high_s = bounds_s(bucket)
        middle_s = math.sqrt(low_s * high_s)
        faster = bucket_of(min(middle_s / MARGIN, middle_s - MARGIN_S))
        found[faster] = found.get(faster, 0.0) + calls
    return found


def _quantile(histogram: Histogram, q: float) -> int:
    rank, below = q * sum(histogram.values()), 0.0
    for bucket, calls in sorted(histogram.items()):
        below += calls
        if below >= rank:
            return bucket
    return max(histogram)


def _sum(added: Histogram, before: Histogram, memory: float) -> dict[int, float]:
    total = {bucket: calls * memory for bucket, calls in before.items() if calls * memory > 1e-3}
    for bucket, calls in added.items():
        total[bucket] = total.get(bucket, 0.0) + calls
    return total


def _inputs(evidence: Evidence, age_s: float) -> dict[str, float]:
    found = {"age_s": round(age_s, 1)}
    for name, side in (("canary", evidence.canary), ("stable", evidence.stable)):
        found |= {f"{name}_calls": side.calls, f"{name}_bad": side.bad}
        whole = {bucket: round(calls) for bucket, calls in side.latency.items()}
        for percent in (50, 95):
            found[f"{name}_p{percent}_ms"] = round(1000 * (percentile_s(whole, percent / 100) or 0.0), 3)
    found |= {"log_e_errors": round(evidence.log_errors, 2), "log_e_latency": round(evidence.log_latency, 2)}
    return found


def _rate(side: Side) -> float:
    return side.bad / side.calls if side.calls else 0.0


def _power(log: float) -> str:
    return f"10^{log / math.log(10):.1f}"


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def _log_sum(logs: Sequence[float]) -> float:
    highest = max(logs)
    return highest + math.log(sum(math.exp(log - highest) for log in logs))


def _log_mean(logs: Sequence[float]) -> float:
    return _log_sum(logs) - math.log(len(logs))
