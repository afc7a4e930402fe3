"""Which version of a function answers a call: shares, canary, and who still serves while a successor is not ready.

`u`, uniform in [0, 1), is the call's place: at random, or by hash of its caller, who then always has the same. What is
new takes the low places, in proportion to what it may have and how far it has come up, so a caller moves to the new
version once and back only by a rollback. Among stable shares another digit of `u` decides.

| route                        | ready (1 stable / 2 new)  | u < 0.1 | u = 0.3 | u = 0.9
|------------------------------|---------------------------|---------|---------|--------
| all to 1, canary 2 at 10 %   | 4 / 0                     | 1       | 1       | 1
| all to 1, canary 2 at 10 %   | 4 / 1                     | 2       | 1       | 1
| all to 2, previous 1         | 4 / 0                     | 1       | 1       | 1
| all to 2, previous 1         | 4 / 2                     | 2       | 2       | 1
| all to 2, previous 1         | 4 / 4, or 0 / any         | 2       | 2       | 2

This module does not know clocks or instances: how many are ready, and the time, are passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import accumulate

from samovar.spec import Route
from samovar_storage.routes import HOLD_S, width

_FINE = float(1 << 24)

Bounds = Sequence[tuple[float, int]]
NumReady = Callable[[int], int]


@dataclass(frozen=True, slots=True)
class Plan:
    """How a route's calls are spread. shares, previous: as `cumulative`.

    canary: version, 0 = none; canary_share: within [0, 1). needs: version of the shares → (its share, most instances it
    may have). moved_at_s: unix seconds.
    """

    shares: Bounds
    previous: Bounds = ()
    canary: int = 0
    canary_share: float = 0.0
    needs: Mapping[int, tuple[float, int]] | None = None
    moved_at_s: float = 0.0

    @property
    def only(self) -> int:
        """The one version that gets every call, 0 if that depends."""
        return self.shares[0][1] if len(self.shares) == 1 and not self.canary and not self.previous else 0


def plan_of(route: Route, known: Collection[int], most: Mapping[int, int]) -> Plan | None:
    """Return the plan of a route, without the versions that are not `known`; None if nothing is left.

    most: version → instances it may have at most.
    """
    shares = cumulative({v: share for v, share in route.shares.items() if int(v) in known})
    if not shares:
        return None
    canary = route.canary if route.canary is not None and route.canary.version in known else None
    return Plan(
        shares=shares,
        previous=cumulative({v: share for v, share in route.previous.items() if int(v) in known}),
        canary=canary.version if canary is not None else 0,
        canary_share=canary.percent / 100 if canary is not None else 0.0,
        needs={version: (route.shares[str(version)] / 100, most[version]) for _, version in shares},
        moved_at_s=route.moved_at_s,
    )


def choose(plan: Plan, num_ready: NumReady, u: float, now_s: float) -> int:
    """Return the version of the call at `u`. num_ready: version → its ready instances. now_s: unix seconds."""
    if u < plan.canary_share and num_ready(plan.canary):
        return plan.canary
    fine = u * _FINE % 1.0
    if plan.previous and u >= moved_share(plan, num_ready, now_s):
        version = pick(plan.previous, fine)
        if num_ready(version):
            return version
    return pick(plan.shares, fine)


def moved_share(plan: Plan, num_ready: NumReady, now_s: float) -> float:
    """Return the share of calls, within [0, 1], that goes to the shares rather than to what was before them.

    None while any of them has nobody ready, all once each is as wide as it needs to be (for HOLD_S), or when of those
    before nobody is left.
    """
    before = sum(num_ready(version) for _, version in plan.previous)
    if not before:
        return 1.0
    come_up = [num_ready(v) / width(before, share, most) for v, (share, most) in (plan.needs or {}).items()]
    if not all(come_up):
        return 0.0
    return 1.0 if now_s - plan.moved_at_s >= HOLD_S else min(1.0, *come_up)


def settled(plan: Plan, num_ready: NumReady, now_s: float) -> Plan:
    """Return the plan without what was before, once its successors serve all calls; else the plan as it is."""
    if not plan.previous or not all(num_ready(version) for _, version in plan.shares):
        return plan
    return replace(plan, previous=()) if moved_share(plan, num_ready, now_s) >= 1.0 else plan


def place(salt: str, caller: str) -> float:
    """Return the place, in [0, 1), of a caller: always the same for the same salt, spread evenly over callers."""
    digest = blake2b(f"{salt}\0{caller}".encode("utf-8", "surrogateescape"), digest_size=7).digest()
    return (int.from_bytes(digest) >> 3) / (1 << 53)


def cumulative(shares: Mapping[str, int]) -> list[tuple[float, int]]:
    """Return (upper bound within (0, 1], version) for each version with a share, versions ascending."""
    versions = sorted((int(version), share) for version, share in shares.items() if share > 0)
    total = sum(share for _, share in versions)
    bounds = accumulate(share for _, share in versions)
    return [(bound / total, version) for bound, (version, _) in zip(bounds, versions, strict=True)]


def pick(bounds: Bounds, u: float) -> int:
    """Return the version that `u`, uniform in [0, 1), falls to. bounds: non-empty, from `cumulative`."""
    return next((version for bound, version in bounds if u < bound), bounds[-1][1])
