"""Takes back calls that were given ahead to an instance which then turned out to be busy for longer than usual.

The prefetch allowance (`slots.py`) trusts the measured service time; a function that is fast nine times and slow the
tenth would leave calls stuck behind the slow one while other instances are free. So whoever waits there for STUCK_S is
withdrawn from that instance, and put back to the head of the central queue when the instance confirms it; a call that
has begun just then goes on. An instance that does not even confirm is deaf: it hangs, or its handler holds the
interpreter; then the calls that may run twice do not wait for it any longer.

An instance that others use, too, may have no slot for a call that we sent there: a long job of a worker has it. Such
a call waits there until another instance opens (`ask_back`), which the demand for it brings up. This module does not
know the queue.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING

from samovar.wire import Cancel
from samovar_dispatch.slots import Seat, prefetch_allowance

if TYPE_CHECKING:
    from samovar_dispatch.call import Call
    from samovar_dispatch.connection import InstanceConnection

STUCK_S = 0.02
DEAF_S = 0.5
CANCELLED = "cancelled"  # the code by which an instance confirms


class Recall:
    """Looks every STUCK_S while any instance holds calls beyond its slots; costs nothing otherwise.

    reclaim: called with a deaf instance's connection and the calls that it does not give back.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, reclaim: Callable[[InstanceConnection, list[Call]], None]
    ) -> None:
        self._loop = loop
        self._reclaim = reclaim
        self._ahead: dict[Seat[InstanceConnection], None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, seat: Seat[InstanceConnection]) -> None:
        """`seat` holds more calls than it has slots."""
        self._ahead[seat] = None
        if self._timer is None:
            self._timer = self._loop.call_later(STUCK_S, self._look)

    def _look(self) -> None:
        self._timer = None
        ahead, self._ahead = self._ahead, {}
        now_s = time.monotonic()
        for seat in ahead:
            if seat.load > seat.slots:
                take_back(seat, now_s)
                lost = not_given_back(seat, now_s)
                if lost:
                    self._reclaim(seat.owner, lost)
                else:
                    self.watch(seat)


def take_back(seat: Seat[InstanceConnection], now_s: float) -> None:
    """Cancel the calls beyond the seat's slots if the first of them has waited for STUCK_S."""
    connection = seat.owner
    waiting = [*islice(connection.in_flight.values(), seat.slots, None)]
    waited_s = now_s - waiting[0].sent_s if waiting else 0.0
    if waited_s < STUCK_S:
        return
    version = waiting[0].version
    version.service_s = max(version.service_s, waited_s)
    version.seats.allowance = prefetch_allowance(version.service_s)
    for call in waiting:
        if not call.done and not call.recalled:
            call.recalled = True
            connection.send(Cancel(call.id, if_waiting=True))


def ask_back(members: Iterable[InstanceConnection], now_s: float) -> None:
    """Ask for every call that these instances have held for STUCK_S and may not have begun: a slot is free elsewhere.

    Those that run go on.
    """
    for connection in members:
        for call in connection.in_flight.values():
            is_young = now_s - call.sent_s < STUCK_S
            if not (is_young or call.done or call.recalled or call.started or call.stream or call.ask.job):
                call.recalled = True
                connection.send(Cancel(call.id, if_waiting=True))


def not_given_back(seat: Seat[InstanceConnection], now_s: float) -> list[Call]:
    """Return the calls beyond the seat's slots that its instance had DEAF_S to give back, and may run twice.

    An instance answers a cancellation in milliseconds, however busy its handlers are. One that does not is stopped, or
    holds the interpreter; should it wake, it finds the cancellation behind the call, and may have begun to run it.
    """
    waiting = islice(seat.owner.in_flight.values(), seat.slots, None)
    stuck = [call for call in waiting if call.recalled and not call.done and now_s - call.sent_s > DEAF_S]
    return stuck if stuck and stuck[0].version.manifest.retry_on_crash else []
