"""One attempt made of up to two calls: a copy goes to another instance when the first runs long; one answer counts.

| what happens                                    | then
|-------------------------------------------------|-----------------------------------------------------------------
| the first has run for `after_s`                 | a copy, if another instance has a slot free and the budget allows
| it still waits for a slot by then               | looked at again later: what waits is not slow
| one answers, or is refused with a 4xx           | that is the outcome; the other is cancelled, counted `hedge_lost`
| one fails (5xx, lost, late), the other runs     | the other decides
| the caller leaves                               | both are cancelled

A copy never waits in a queue and never goes where the first is. This module does not know percentiles or budgets.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from samovar.errors import Cancelled, SamovarError
from samovar.wire import Result
from samovar_dispatch.ask import HEDGED, Ask
from samovar_dispatch.call import Call, Outcome, Owner, Version
from samovar_dispatch.retries.hedging import Hedging

if TYPE_CHECKING:
    from samovar_dispatch.dispatcher import Dispatcher

HEDGE_LOST = "hedge_lost"


class Hedge:
    """The owner of both calls; to the attempt's owner it is one. Starts at once; `cancel` abandons both.

    Raises: what `Dispatcher.submit` raises.
    """

    __slots__ = ("_copy", "_dispatcher", "_first", "_hedging", "_owner", "_timer", "_winner")

    def __init__(self, dispatcher: Dispatcher, version: Version, hedging: Hedging, ask: Ask, owner: Owner) -> None:
        self._dispatcher = dispatcher
        self._hedging = hedging
        self._owner = owner
        self._copy: Call | None = None
        self._winner: Call | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._first = dispatcher.submit(version, ask, self)
        hedging.budget.called(self._first.submitted_s)
        self._wait(hedging.after_s)

    def cancel(self) -> None:
        """Nobody wants the answer any more. Idempotent."""
        for call in (self._first, self._copy):
            if call is not None:
                call.cancel()

    def place(self) -> int | None:
        """Return the place of the first call: a copy never waits."""
        return self._first.place()

    def deliver(self, call: Call, outcome: Outcome) -> None:
        """Our side of `call.Owner`: one of the two has an outcome."""
        if self._winner is not None:
            return
        other = self._copy if call is self._first else self._first
        runs_on = other is not None and not other.done
        if runs_on and isinstance(outcome, SamovarError) and outcome.status >= 500:
            return
        self._winner = call
        if self._timer is not None:
            self._timer.cancel()
        if other is not None and runs_on:
            self._dispatcher.give_up(other, Cancelled(), HEDGE_LOST, patient=True)
        if type(outcome) is Result:
            self._hedging.answered(time.monotonic() - self._first.sent_s)
            self._hedging.num_won += call is self._copy
        self._owner.deliver(call, outcome)

    def ended(self, call: Call, outcome: Outcome, code: str) -> None:
        """Our side of `call.Owner`: one of the two is over."""
        if call is self._winner:
            self._owner.ended(call, outcome, code)

    def _wait(self, after_s: float | None) -> None:
        if after_s is not None:
            self._timer = asyncio.get_running_loop().call_later(after_s, self._look)

    def _look(self) -> None:
        first = self._first
        if first.done:
            return
        waited_s = time.monotonic() - first.sent_s if first.seat is not None else 0.0
        after_s = self._hedging.after_s or 0.0
        if waited_s < 0.9 * after_s or first.seat is None:
            self._wait(max(0.001, after_s - waited_s))
            return
        self._copy = self._dispatcher.send_copy(first, self, self._hedging.budget.spend)
        if self._copy is not None:
            self._hedging.num_sent += 1
            first.ask.marks |= HEDGED
