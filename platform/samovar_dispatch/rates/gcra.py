"""The generic cell rate algorithm with bursts: who may call now, and what is left to lease.

The state of a limit is one instant, the *theoretical arrival time* (TAT): it lies in the past while the limit is
unused, and each call pushes it on by 1/rate. What it is ahead of now is *backlog*: `burst` minus the backlog's worth of
calls may still come. This module does not know who shares a limit, nor where its instant is kept; the Lua in
`samovar_storage/rates.py` says the same as `lease`.
Source: ATM Forum TM 4.0 (GCRA as virtual scheduling).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from samovar.policies import parse_rate

AHEAD_S = 0.1  # gateways lease for this long ahead: no burst is smaller than what comes in it
MAX_DEBT_S = 3600.0
_EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class Rate:
    """A limit as declared. per_s: calls a second, > 0. burst: calls that may come at once after a pause, >= 1.

    text: the rate as it was written, such as "20/s". call_s: backlog of one call. tolerance_s: a call may come while
    the backlog is no longer than this. most_calls: what one request of many calls pays for at most: more than that
    would make the next one wait for over an hour.
    """

    per_s: float
    burst: int
    text: str
    call_s: float = field(init=False)
    tolerance_s: float = field(init=False)
    most_calls: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "call_s", 1 / self.per_s)
        object.__setattr__(self, "tolerance_s", (self.burst - 1 + _EPSILON) / self.per_s)
        object.__setattr__(self, "most_calls", max(self.burst, math.ceil(self.per_s * MAX_DEBT_S)))

    @property
    def window_s(self) -> int:
        """Seconds in which an exhausted burst comes back, rounded up, >= 1."""
        return max(1, math.ceil(self.burst / self.per_s - _EPSILON))


@dataclass(frozen=True, slots=True)
class Lease:
    """What a lease changed. granted: calls the holder may admit, >= 0. tat_s: the limit's instant afterwards."""

    granted: int
    tat_s: float


def rate_of(text: str | None, burst: int | None) -> Rate | None:
    """Return the limit that an author or a key's owner declared, None for none.

    burst: None or 0 = one second's worth; it counts as what comes in 100 ms at least. Raises DeployRefused.
    """
    if not text:
        return None
    per_s = parse_rate(text)
    return Rate(per_s, max(burst or math.ceil(per_s), math.ceil(per_s * AHEAD_S)), text)


def available(rate: Rate, tat_s: float, now_s: float) -> float:
    """Return how many calls may come now: at most `burst`, below 0 when more came than should have."""
    return rate.burst - max(0.0, tat_s - now_s) * rate.per_s


def conforms(rate: Rate, tat_s: float, now_s: float) -> bool:
    """Return whether a call may come now."""
    return tat_s - now_s <= rate.tolerance_s


def spend(rate: Rate, tat_s: float, now_s: float, calls: float) -> float:
    """Return the limit's instant after `calls`, conforming or not; negative: calls that were not made after all."""
    return max(now_s, max(tat_s, now_s) + calls / rate.per_s)


def wait_s(rate: Rate, tat_s: float, now_s: float) -> float:
    """Return the seconds until a call may come, 0 if it may now."""
    return max(0.0, (1 - available(rate, tat_s, now_s)) / rate.per_s)


def lease(rate: Rate, tat_s: float, now_s: float, charge: float, want: int) -> Lease:
    """Charge calls that were made (negative: lease given back), then grant up to `want` (>= 0) of what is left."""
    charged_s = spend(rate, tat_s, now_s, charge)
    granted = max(0, min(want, math.floor(available(rate, charged_s, now_s) + _EPSILON)))
    return Lease(granted, spend(rate, charged_s, now_s, granted))
