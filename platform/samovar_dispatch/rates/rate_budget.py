"""One gateway's part in one limit: what it leased, what it spent unasked, what it believes of the others.

A call is paid for from the lease or, when nothing is leased, on credit. On credit a gateway assumes that each of the
others does as it does: a call of its own pushes its picture of the shared instant on by `num_gateways` calls. So it
spends its N-th of what is believed to be there, at N-th of the rate, with a burst of an N-th; that is the first slice
of an idle limit, the bridge between two reports, and the fair share while Redis is away, all by one formula.
A report charges what was spent, gives back what is not needed and asks for what will be; the reply is the new picture.
This module does not know the store, nor when reports are sent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from samovar_dispatch.rates.gcra import AHEAD_S, Rate, available, spend, wait_s

TICK_S = 0.05
CALM_TICK_S = 0.2  # while no limit is near
_DECAY = 0.7  # of the remembered peak demand, per report
_MIN_DEMAND_PER_S = 1.0


@dataclass(frozen=True, slots=True)
class Report:
    """What the store is told and asked. charge: calls made, minus lease given back. want: calls to lease, >= 0.

    spent, given_back: what `charge` was made of, should the report be lost.
    """

    charge: float
    want: int
    spent: int
    given_back: int


class Budget:
    """Mutable; all `_s` are monotonic seconds. busy, parked: marks for whoever keeps budgets."""

    __slots__ = ("asked", "busy", "calm", "demand_per_s", "held", "name", "parked", "rate", "short", "spent", "tat_s")

    def __init__(self, name: tuple[str, str], rate: Rate) -> None:
        self.name = name
        self.rate = rate
        self.held = 0  # leased and not used
        self.spent = 0  # on credit since the last report
        self.asked = 0  # calls since the last report, refused ones too
        self.tat_s = 0.0  # the shared instant, as far as known
        self.demand_per_s = 0.0
        self.short = False  # the last report got less than it wanted: asking again at once is of no use
        self.calm = False  # nowhere near the limit: reports may come less often
        self.busy = self.parked = False

    def may(self, now_s: float) -> bool:
        """Return whether a call may pass."""
        return self.held > 0 or self.tat_s - now_s <= self.rate.tolerance_s

    def room(self, now_s: float, num_gateways: int) -> int:
        """Return how many calls may pass here before the others are heard of again, >= 0: at least one if any may."""
        if not self.may(now_s):
            return 0
        own_part = math.floor(available(self.rate, self.tat_s, now_s) / num_gateways)
        return max(1, self.held + max(0, own_part))

    def take(self, now_s: float, num_gateways: int, num_calls: int = 1) -> bool:
        """A call passes, or a request of several, though they are more than may pass now: the next ones wait for it.

        Return whether a report is urgent: this was the last one on credit, as far as known.
        """
        if self.held >= num_calls:
            self.held -= num_calls
            return False
        tat_s, rate = self.tat_s, self.rate
        on_credit, self.held = num_calls - self.held, 0
        self.tat_s = tat_s = (tat_s if tat_s > now_s else now_s) + num_gateways * on_credit * rate.call_s
        self.spent += on_credit
        return tat_s - now_s > rate.tolerance_s and not self.short

    def wait_s(self, now_s: float) -> float:
        """Return the seconds until a call may pass, as far as known."""
        return wait_s(self.rate, self.tat_s, now_s)

    def report(self, now_s: float, num_gateways: int, since_s: float, may_lease: bool) -> Report:
        """Return what to tell the store, and count it as told.

        since_s: seconds since the last report, >= 0. may_lease: False right after an outage, while the others have
        not yet told what they spent.
        """
        self._look_ahead(since_s)
        left = available(self.rate, self.tat_s, now_s)
        own_part = max(0, math.floor(left / num_gateways))
        hold = max(0, min(self.rate.burst, math.ceil(self.demand_per_s * AHEAD_S)) - own_part)
        self.calm = not hold and left >= self.rate.burst / 2
        given_back = self.held - hold if self.held > 2 * hold else 0
        want = max(0, hold - self.held) if may_lease else 0
        charge: float = self.spent
        if not may_lease:  # what was spent long ago has flowed back since: only what is still missing is charged
            charge = min(charge, max(0.0, self.tat_s - now_s + AHEAD_S) * self.rate.per_s / num_gateways)
        told = Report(charge - given_back, want, self.spent, given_back)
        self.spent, self.held = 0, self.held - given_back
        return told

    def settle(self, told: Report, granted: int, backlog_s: float, now_s: float, num_gateways: int) -> None:
        """The store took the report: it granted so many calls, and its instant is `backlog_s` ahead of now."""
        self.held += granted
        self.short = granted < told.want
        self.tat_s = now_s + backlog_s
        if self.spent:  # while the report was under way
            self.tat_s = spend(self.rate, self.tat_s, now_s, self.spent * num_gateways)

    def rejoin(self, backlog_s: float, now_s: float) -> None:
        """The store took a report after an outage: believe the worse of its picture and ours."""
        self.tat_s = max(self.tat_s, now_s + backlog_s)

    def lost(self, told: Report) -> None:
        """The store did not take the report."""
        self.spent += told.spent
        self.held += told.given_back

    def is_quiet(self) -> bool:
        """Return whether there is nothing to tell, and nothing held."""
        return not (self.held or self.spent or self.asked or self.demand_per_s)

    def _look_ahead(self, since_s: float) -> None:
        # one call a report always finds credit where there is any
        recent = max(0, self.asked - 1) / max(since_s, TICK_S)
        self.demand_per_s = max(recent, self.demand_per_s * _DECAY)
        if self.demand_per_s < _MIN_DEMAND_PER_S:
            self.demand_per_s = 0.0
        self.asked = 0
