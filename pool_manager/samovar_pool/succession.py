"""How many instances a version needs for the sake of the others on its route, before any call reaches it.

| version         | has, while others have instances                     | because
|-----------------|------------------------------------------------------|--------------------------------------------
| successor       | as many as those before it have ready, up to its max | it takes over their calls as it comes up
| canary          | its percent of the stable ones' number, at least one | it gets calls only once it is ready
| mirror          | one                                                  | copies of calls start nothing by themselves
| what was before | what its own demand and floors ask for, until the    | the stable one shrinks last
|                 | successor has come up; then it goes when it is idle  |

Nobody is ready, nothing is needed: an idle function stays at zero, and its next call starts the successor. Nothing here
is stored: whether a successor has come up is read off instances, so a new manager finds out by itself.
This module does not know demand, Redis or processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from samovar.spec import Route
from samovar_storage.routes import HOLD_S, width


@dataclass(frozen=True, slots=True)
class Company:
    """The versions that a route names. ready: version → instances that take calls; least, most: that it is to have."""

    ready: Mapping[int, int]
    most: Mapping[int, int]
    least: Mapping[int, int] = field(default_factory=dict)

    def total(self, shares: Mapping[str, int]) -> int:
        """Return the ready instances of the versions with a share."""
        return sum(self.ready.get(int(version), 0) for version, share in shares.items() if share > 0)


def has_come_up(route: Route, company: Company, now_s: float) -> bool:
    """Return whether the versions of the shares can do without those before them. now_s: unix seconds.

    They can when each is as wide as its share of those before, or, HOLD_S after the change, has one instance ready.
    """
    before = company.total(route.previous) if now_s - route.moved_at_s < HOLD_S else 0
    return all(
        company.ready.get(version, 0) >= width(before, share, company.most.get(version, 1))
        for version, share in _stable(route).items()
    )


def floors(route: Route, company: Company, is_settled: bool) -> dict[int, int]:
    """Return version → instances it is to have for the others' sake, of those that are to have any.

    is_settled: the versions of the shares have come up since the route's last move.
    """
    found: dict[int, int] = {}
    before = company.total(route.previous) if not is_settled else 0
    if before:
        found = {v: company.least.get(v, 0) for v in map(int, route.previous) if company.ready.get(v)}
        found |= {v: width(before, share, company.most.get(v, 1)) for v, share in _stable(route).items()}
    serving = max(before, company.total(route.shares))
    if serving and route.mirror is not None:
        found[route.mirror.version] = max(1, found.get(route.mirror.version, 0))
    if serving and route.canary is not None:
        canary = route.canary
        wanted = width(serving, canary.percent / 100, company.most.get(canary.version, 1))
        found[canary.version] = max(wanted, found.get(canary.version, 0))
    return {version: floor for version, floor in found.items() if floor}


def _stable(route: Route) -> dict[int, float]:
    return {int(version): share / 100 for version, share in route.shares.items() if share > 0}
