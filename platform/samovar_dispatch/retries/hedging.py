"""When a second copy of a slow call is worth it, and how many of them: `hedge_after` of a version.

| hedge_after | a copy is sent once the call has run for …
|-------------|------------------------------------------------------------------------------------------------
| "50ms"      | 50 ms
| "p95"       | as long as 95 of 100 of the newest calls took; no copies until MIN_SAMPLES of them are known

The copies are at most HEDGE_SHARE of the calls of the last ten seconds (`retry_budget.py`): where every call becomes
slow, it is not one instance that is slow, and copies would only add to it. As in Dean and Barroso, "The Tail at Scale".
This module does not know calls, instances or clocks.
"""

from __future__ import annotations

from samovar.spec import Manifest
from samovar_dispatch.retries.retry_budget import HEDGE_SHARE, Budget

MIN_SAMPLES = 100
MAX_SAMPLES = 500  # the newest so many are looked at
RECOUNT = 50  # samples between two looks: sorting is for the few


class Percentile:
    """The time that a share (0..1) of the newest MAX_SAMPLES calls did not exceed. value_s: None until MIN_SAMPLES."""

    __slots__ = ("_next", "_samples_s", "_share", "_since", "value_s")

    def __init__(self, share: float) -> None:
        self.value_s: float | None = None
        self._share = share
        self._samples_s: list[float] = []
        self._next = self._since = 0

    def add(self, took_s: float) -> None:
        """One more call took so long, seconds."""
        if len(self._samples_s) < MAX_SAMPLES:
            self._samples_s.append(took_s)
        else:
            self._samples_s[self._next] = took_s
        self._next = (self._next + 1) % MAX_SAMPLES
        self._since += 1
        if self._since >= RECOUNT and len(self._samples_s) >= MIN_SAMPLES:
            self._since = 0
            ordered = sorted(self._samples_s)
            self.value_s = ordered[int(self._share * (len(ordered) - 1))]


class Hedging:
    """One version's. budget: what copies are paid from. num_sent, num_won: copies, and those that answered first."""

    __slots__ = ("_fixed_s", "_percentile", "budget", "num_sent", "num_won")

    def __init__(self, hedge_after: str) -> None:
        self.budget = Budget(HEDGE_SHARE)
        self.num_sent = self.num_won = 0
        self._fixed_s: float | None = None
        self._percentile: Percentile | None = None
        if hedge_after.startswith("p"):
            self._percentile = Percentile(int(hedge_after[1:]) / 100)
        else:
            self._fixed_s = float(hedge_after.removesuffix("ms")) / 1000

    @property
    def after_s(self) -> float | None:
        """How long a call runs before a copy is sent, seconds; None while that is not known."""
        return self._fixed_s if self._percentile is None else self._percentile.value_s

    def answered(self, took_s: float) -> None:
        """A call was answered so long after it was given to its first instance, seconds."""
        if self._percentile is not None:
            self._percentile.add(took_s)


def hedging_of(manifest: Manifest) -> Hedging | None:
    """Return the hedging of a version, None if it wants none or cannot have any: a copy is a second run, and of two
    streams neither could be taken back."""
    streams = "generator" in manifest.handler
    return Hedging(manifest.hedge_after) if manifest.hedge_after and manifest.retry_on_crash and not streams else None
