"""What is made of a Busy that a queued job got: jobs take what is left of an instance, and no more.

| an instance says Busy to a job, and        | then
|--------------------------------------------|------------------------------------------------------------------
| it holds other calls of ours               | it gets no more than those at a time; one more every WIDEN_S
| it holds none of ours                      | it is left alone for a moment, as for any call
| the job has been held here for PATIENCE_S  | it is refused with Shed: another worker may have a slot for it

Unlike invocations, jobs are never queued in an instance (`wire.Invoke.job`), so others who share it show by Busy.
Without the first row a seat of many slots would stand empty for each moment that it is left alone. Source: additive
increase, as of TCP. This module does not know frames, or where a refused job goes.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from samovar.errors import Shed
from samovar_dispatch.call import Call, Version
from samovar_dispatch.connection import InstanceConnection

if TYPE_CHECKING:
    from samovar_dispatch.dispatcher import Dispatcher

WIDEN_S = 0.01
PATIENCE_S = 0.25


class Narrowing:
    """One per dispatcher."""

    def __init__(self, dispatcher: Dispatcher, loop: asyncio.AbstractEventLoop) -> None:
        self._dispatcher = dispatcher
        self._loop = loop
        self._narrowed: set[InstanceConnection] = set()

    def narrow(self, connection: InstanceConnection, version: Version) -> None:
        """This instance gets no more calls at a time than it holds of ours now, for the moment."""
        version.seats.limit(connection.seat, len(connection.in_flight))
        if connection not in self._narrowed:
            self._narrowed.add(connection)
            self._loop.call_later(WIDEN_S, self._widen, connection, version)

    def _widen(self, connection: InstanceConnection, version: Version) -> None:
        seat = connection.seat
        if seat.limit < seat.slots and connection.opened:
            version.seats.limit(seat, seat.limit + 1)
            self._loop.call_later(WIDEN_S, self._widen, connection, version)
            self._dispatcher.pump(version)
        else:
            self._narrowed.discard(connection)


def is_tired(call: Call, now_s: float) -> bool:
    """Return whether a job has been held for long enough. now_s: monotonic seconds."""
    return call.ask.job is not None and now_s - call.submitted_s >= PATIENCE_S


def no_slot(call: Call) -> Shed:
    """Return what a tired job is refused with."""
    detail = f"the instances of {call.version.ref} have had no slot free for a job in {PATIENCE_S} s"
    return Shed(detail)  # nobody knows for how long: who asks again and again waits longer each time
