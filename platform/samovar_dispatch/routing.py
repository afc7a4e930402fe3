"""Which version of a function answers a call, by the route's shares. Randomness is passed in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate


def cumulative(shares: Mapping[str, int]) -> list[tuple[float, int]]:
    """Return (upper bound within (0, 1], version) for each version with a share, versions ascending."""
    versions = sorted((int(version), share) for version, share in shares.items() if share > 0)
    total = sum(share for _, share in versions)
    bounds = accumulate(share for _, share in versions)
    return [(bound / total, version) for bound, (version, _) in zip(bounds, versions, strict=True)]


def choose(bounds: Sequence[tuple[float, int]], u: float) -> int:
    """Return the version that `u`, uniform in [0, 1), falls to. bounds: non-empty, from `cumulative`."""
    return next((version for bound, version in bounds if u < bound), bounds[-1][1])
