"""Where calls wait for a slot: who may enter, who goes next, and who is told that it waits in vain.

    admit   a newcomer that cannot meet its deadline, or finds no room, is refused at once; one that matters more than
            somebody who waits takes their place
    next    whoever can still end in time; the others are told now
    look    a queue that stays late serves the newest first and sheds whoever has waited too long

The shell around `queue.py`, `pace.py` and `shedding.py`. This module does not know sockets or HTTP.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from samovar.errors import DeadlineExceeded, LowPriority, QueueLate, SamovarError, Shed, WouldBeLate
from samovar_dispatch.waiting.queue import Backlog, retry_after_s
from samovar_dispatch.waiting.shedding import Outlook, target_s

if TYPE_CHECKING:
    from samovar_dispatch.call import Call, Version
    from samovar_dispatch.connection import InstanceConnection
    from samovar_dispatch.slots import Seat

MAX_LANES_ASKED = 16  # of more, one comes free so soon that the average tells it


class Desk(Protocol):
    """Who tells callers what became of their calls: the dispatcher."""

    def fail(self, call: Call, error: SamovarError) -> None:
        """The call ends with `error`."""


class WaitingRoom:
    """One per dispatcher. backlog: what the bodies of all waiting calls take. on_demand: as the dispatcher's."""

    def __init__(self, desk: Desk, on_demand: Callable[[Version], None]) -> None:
        self.backlog = Backlog()
        self._desk = desk
        self._on_demand = on_demand

    def admit(self, call: Call, now_s: float) -> None:
        """Let a call wait. Raises: Shed, counted, if it may not."""
        version = call.version
        call.cold = not version.members
        self.look(version, now_s)
        try:
            evicted = self._push(call, now_s)
        except Shed as error:
            version.stats.shed(error.code, call.priority)
            if call.cold:
                self._wake(version)  # else nobody who is in a hurry would ever bring it up
            raise
        if call.cold:
            version.stats.cold_starts += 1
        if version.active and version.num_queued > 2 * version.written_demand:
            self._on_demand(version)
        if evicted is not None:
            self._shed(evicted, _made_room(evicted, call))

    def check_time(self, call: Call, seat: Seat[InstanceConnection], now_s: float) -> None:
        """Return if a call may still end in time in this free seat. Raises: WouldBeLate, the seat given back."""
        version = call.version
        if version.pace.is_hopeless(call.deadline_s - now_s, now_s):
            version.seats.give_back(seat)
            version.stats.shed(WouldBeLate.code, call.priority)
            mean_s, _ = version.pace.own_s
            detail = f"calls take {mean_s:.3f} s to be answered, longer than this one has"
            raise WouldBeLate(detail, retry_after_s=1.0, predicted_wait_s=0.0)

    def next(self, version: Version, now_s: float) -> Call | None:
        """Return who is sent now, None if nobody who waits can still end in time."""
        queue, pace = version.queue, version.pace
        while queue:
            call = queue.pop(newest=version.backup.is_backed_up)
            left_s = call.deadline_s - now_s
            if left_s > 0 and not pace.is_hopeless(left_s, now_s):
                pace.departed(now_s, version.num_lanes)
                return call
            detail = f"{left_s:.3f} s are left after waiting in phase queue: too few for a call"
            self._desk.fail(call, DeadlineExceeded(detail, phase="queue"))
        return None

    def look(self, version: Version, now_s: float) -> None:
        """Shed whoever has waited too long, if the queue has stayed late. Waiting for a boot is no lateness."""
        oldest = version.queue.oldest() if version.members else None
        waited_s = now_s - oldest.submitted_s if oldest is not None else 0.0
        target = target_s(version.pace.held_s)
        if version.backup.look(now_s, waited_s, len(version.queue), target):
            for call in version.queue.take_older(now_s - target):
                detail = f"the queue stays late, and this call has waited for more than {target:.2f} s"
                self._shed(call, QueueLate(detail, retry_after_s=retry_after_s(2 * target)))

    @staticmethod
    def phase(version: Version) -> str:
        """Return what those who wait wait for: queue (a slot), connect (to an instance that is ready) or boot."""
        if version.members:
            return "queue"
        return "connect" if version.boots.connecting else "boot"

    def outlook(self, version: Version, now_s: float) -> Outlook:
        """Return what a newcomer can expect of `version`."""
        lanes = version.num_lanes
        arrivals = version.boots.arrivals(now_s, version.lanes_each, 0.0 if lanes else version.lanes_each)
        return Outlook(version.pace, lanes, arrivals, _free_s(version, now_s, lanes), version.is_limited)

    def _push(self, call: Call, now_s: float) -> Call | None:
        version, queue = call.version, call.version.queue
        outlook = self.outlook(version, now_s)
        newest_first = version.backup.is_backed_up
        num_ahead = 0 if newest_first else queue.num_ahead(call.priority)
        outlook.check(num_ahead, call.deadline_s - now_s, call.priority)
        predicted_s = outlook.predicted_wait_s(len(queue)) or 0.0
        return queue.push(call, retry_after_s(predicted_s), newest_first=newest_first)

    def _wake(self, version: Version) -> None:
        version.stats.submitted += 1
        if not version.active:
            version.active = True
            self._on_demand(version)

    def _shed(self, call: Call, error: Shed) -> None:
        call.version.stats.shed(error.code, call.priority)
        self._desk.fail(call, error)


def _made_room(evicted: Call, newcomer: Call) -> Shed:
    if evicted.priority > newcomer.priority:
        return LowPriority("the queue is full, and a more important call took its place", retry_after_s=1.0)
    return QueueLate("the queue is full and stays late; the newest calls go first", retry_after_s=1.0)


def _free_s(version: Version, now_s: float, lanes: float) -> list[float]:
    """Return when lanes come free, by how long what runs has been running; the average if there are many."""
    pace = version.pace
    if not lanes or lanes > MAX_LANES_ASKED:
        return [pace.per_call_s / lanes] if lanes else []
    members = version.members.values()
    if version.manifest.batch is not None:
        running = [next(iter(member.in_flight.values())) for member in members if member.in_flight]
        return [min((pace.left_s(now_s - call.sent_s) for call in running), default=0.0)]
    free_s = [pace.left_s(now_s - call.sent_s) for member in members for call in member.in_flight.values()]
    free_s.sort()
    return ([0.0] * int(lanes) + free_s)[-int(lanes) :]
