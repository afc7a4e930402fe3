"""The shell around the pure parts: takes calls in, gives each to an instance, resolves its outcome exactly once.

    submit ──seat free?──► send ──Result/Failure/End──► outcome
       └──► queue ──seat comes free──┘   └─Busy, instance lost─► back to the head, or once more alone, or failed

A seat is freed only when its instance really ended the id, or is gone: a caller that left or a deadline that passed
resolves the outcome at once, but the slot stays taken while the work still runs. Everything happens on one event loop,
without a task per call. This module does not know HTTP, Redis or how instances come to be.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from samovar import wire
from samovar.errors import (
    Cancelled,
    DeadlineExceeded,
    FunctionNotFound,
    SamovarError,
)
from samovar.spec import Manifest
from samovar_dispatch.ask import Ask
from samovar_dispatch.call import Call, Outcome, Owner, Version
from samovar_dispatch.connection import InstanceConnection
from samovar_dispatch.deadlines import DeadlineWheel
from samovar_dispatch.health.ejections import Ejections
from samovar_dispatch.health.guard import Guard, boot_error
from samovar_dispatch.recall import Recall
from samovar_dispatch.reception import Reception
from samovar_dispatch.slots import Seat
from samovar_dispatch.waiting.waiting_room import WaitingRoom
from samovar_storage.records import BootFailure, InstanceRecord


class Dispatcher:
    """One per process. versions: live state by ref. late_replies: answers to ids nobody knows any more, dropped.

    reception: hears what instances say. room: where calls wait. guard: keeps the versions' breakers. ejections:
    keeps calls from instances that do worse than their peers. on_demand: called with a version whose demand rose from
    nothing, or outgrew twice what was last written.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_demand: Callable[[Version], None]) -> None:
        self.versions: dict[str, Version] = {}
        self.late_replies = 0
        self.guard = Guard(self)
        self.ejections = Ejections(self, loop)
        self.reception = Reception(self, loop)
        self.room = WaitingRoom(self, on_demand)
        self._loop = loop
        self._on_demand = on_demand
        self._wheel: DeadlineWheel[Call] = DeadlineWheel()
        self._timer: asyncio.TimerHandle | None = None
        self._recall = Recall(loop, self.reception.reclaim)
        self._seq = 0
        self._idle: asyncio.Future[None] | None = None

    # ---- calls -------------------------------------------------------------------------------------------------

    def version(self, manifest: Manifest) -> Version:
        """Return the live state of a version, made on first use."""
        version = self.versions.get(manifest.ref)
        if version is None:
            version = self.versions[manifest.ref] = Version(manifest, self.room.backlog)
        return version

    def submit(self, version: Version, ask: Ask, owner: Owner) -> Call:
        """Take a call in; `owner` is told its outcome, about at the ask's deadline at the latest.

        The owner is told from within the event loop, never from within `submit`.
        Raises: Shed, BreakerOpen, or the version's boot error while it may not be tried again yet.
        """
        self._seq = seq = self._seq + 1
        now_s = time.monotonic()
        call = Call(self, version, ask, owner, seq, now_s)
        if version.breaker.state:
            call.probe = self.guard.admit(version, now_s)
        seat = None if version.queue or ask.alone else version.seats.take()
        try:
            if ask.alone:
                self._set_aside(call, now_s)
            elif seat is None:
                self.room.admit(call, now_s)
            else:
                if ask.job is None and call.deadline_s - now_s < version.pace.held_s:
                    self.room.check_time(call, seat, now_s)
                self._send(call, seat, now_s)
        except SamovarError:
            version.breaker.give_back(call.probe)
            raise
        version.retries.called(now_s)
        version.stats.submitted += 1
        if self._wheel.add(call):
            self._arm()
        if not version.active:
            version.active = True
            self._on_demand(version)
        return call

    def send_copy(self, call: Call, owner: Owner, may_send: Callable[[float], bool]) -> Call | None:
        """Send a second copy of a running call to another instance that has a slot free now; None if that cannot be.

        may_send: asked last, with monotonic seconds.
        """
        version, now_s = call.version, time.monotonic()
        if call.seat is None or version.queue or version.suspects or version.breaker.state:
            return None
        seat = version.seats.take_beside(call.seat)
        if seat is None:
            return None
        if not may_send(now_s):
            version.seats.give_back(seat)
            return None
        self._seq += 1
        copy = Call(self, version, call.ask, owner, self._seq, now_s)
        self._send(copy, seat, now_s)
        version.stats.submitted += 1
        if self._wheel.add(copy):
            self._arm()
        return copy

    def cancel(self, call: Call) -> None:
        """Nobody wants the answer any more: the outcome is Cancelled; a running call is told to stop."""
        self.give_up(call, Cancelled(), "cancelled")

    def give_up_all(self, error: SamovarError) -> None:
        """Every call whose outcome is still open ends with `error`; what runs is told to stop."""
        for call in self._wheel.expire(float("inf")):
            self.give_up(call, error, error.code)

    @property
    def num_live(self) -> int:
        """Calls whose outcome is still open."""
        return len(self._wheel)

    async def wait_idle(self) -> None:
        """Return once no call's outcome is open."""
        while self.num_live:
            self._idle = self._loop.create_future()
            await self._idle

    def _send(self, call: Call, seat: Seat[InstanceConnection], now_s: float) -> None:
        call.seat = seat
        call.sent_s = now_s
        seat.owner.invoke(call, now_s)
        if seat.load > seat.slots:
            self._recall.watch(seat)

    def pump(self, version: Version) -> None:
        """Give waiting calls to free seats: suspects first, each alone, then the queue."""
        now_s = time.monotonic()
        if version.suspects:
            self._pump_suspects(version, now_s)
        queue, take = version.queue, version.seats.take
        if queue:
            self.room.look(version, now_s)
        while queue and (seat := take()) is not None:
            call = self.room.next(version, now_s)
            if call is None:
                version.seats.give_back(seat)
                break
            self._send(call, seat, now_s)
        if not queue:
            version.pace.emptied()

    def _set_aside(self, call: Call, now_s: float) -> None:
        """The call may have taken down an instance already: it is a suspect from the start."""
        version = call.version
        call.cold = not version.members
        version.stats.cold_starts += call.cold
        version.suspects.append(call)
        self._pump_suspects(version, now_s)

    def _pump_suspects(self, version: Version, now_s: float) -> None:
        seat = version.isolated
        if seat is None:
            seat = version.isolated = version.seats.least_loaded()
            if seat is None:
                return
            version.seats.close(seat)
        if seat.load == 0:
            seat.load = 1
            self._send(version.suspects.popleft(), seat, now_s)

    def release(self, connection: InstanceConnection, version: Version) -> None:
        """A call of this connection has really ended: its slot is free, somebody may be waiting for it."""
        seat = connection.seat
        version.seats.give_back(seat)
        if seat is version.isolated and seat.load == 0 and not version.suspects:
            version.isolated = None
            if connection.may_serve:
                version.seats.open(seat)
        if connection.is_deaf:
            connection.is_deaf = False
            if connection.may_serve and seat is not version.isolated:
                version.seats.open(seat)
        if version.queue or version.suspects:
            self.pump(version)

    def finish(self, call: Call, outcome: Outcome, code: str) -> None:
        """The call has its outcome, counted under `code`. Must be called once per call."""
        call.done = True
        self._wheel.discard(call)
        call.ended_s = now_s = time.monotonic()
        stats = call.version.stats
        stats.queue_sum_s += call.sent_s - call.submitted_s
        stats.ended(call.ask.protocol, code, now_s - call.submitted_s)
        self.guard.ended(call, outcome, code, now_s)
        self.deliver(call, outcome)
        call.owner.ended(call, outcome, code)
        if self._idle is not None and not self._idle.done() and not self.num_live:
            self._idle.set_result(None)

    @staticmethod
    def deliver(call: Call, outcome: Outcome) -> None:
        """Tell the caller, the first time."""
        if not call.delivered:
            call.delivered = True
            call.owner.deliver(call, outcome)

    def fail(self, call: Call, error: SamovarError) -> None:
        """The call, or the rest of its stream, ends with `error`."""
        if call.stream is not None:
            call.stream.finish(error)
        self.finish(call, error, error.code)

    def give_up(self, call: Call, reason: SamovarError | Cancelled, code: str, *, patient: bool = False) -> None:
        """Resolve a call that still waits or runs; what runs keeps its slot until the instance ends it.

        patient: no process is to be ended for it: what cannot be stopped has until its deadline.
        """
        if call.done:
            return
        if call.seat is not None:
            call.seat.owner.send(wire.Cancel(call.id, patient=patient))
        elif not call.version.queue.remove(call) and call in call.version.suspects:
            call.version.suspects.remove(call)
        if call.stream is not None:
            call.stream.finish(reason)
        self.finish(call, reason, code)

    # ---- deadlines ---------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_s = self._wheel.next_due_s()
        if due_s is not None:
            self._timer = self._loop.call_later(max(0.0, due_s - time.monotonic()), self._expire)

    def _expire(self) -> None:
        for call in self._wheel.expire(time.monotonic()):
            phase = "run" if call.seat is not None else self.room.phase(call.version)
            self.ejections.expired(call)
            waited_s = time.monotonic() - call.submitted_s
            error = DeadlineExceeded(f"the deadline passed after {waited_s:.2f} s, in phase {phase}", phase=phase)
            self.give_up(call, error, error.code)
        self._arm()

    # ---- instances and versions that come and go -----------------------------------------------------------------

    def hear(self, record: InstanceRecord) -> None:
        """The pool manager, or our connection to it, says how an instance is that does not serve us."""
        version = self.versions.get(record.ref)
        if version is not None and record.instance_id not in version.members:
            version.boots.hear(record.instance_id, record.state, time.monotonic())

    def forget(self, record: InstanceRecord) -> None:
        """Nothing is known of this instance beyond what `hear` is told next."""
        version = self.versions.get(record.ref)
        if version is not None:
            version.boots.forget(record.instance_id)

    def reopen(self, connection: InstanceConnection, version: Version) -> None:
        """Give this instance calls again, those that wait first, unless something else speaks against it."""
        if connection.may_serve and connection.seat is not version.isolated:
            version.seats.open(connection.seat)
            self.pump(version)

    def stop_sending(self, connection: InstanceConnection) -> None:
        """Give this instance no more calls; what it holds still ends there. Idempotent."""
        connection.opened = False
        version = self.versions.get(connection.record.ref)
        if version is not None:
            version.seats.close(connection.seat)
            if version.isolated is connection.seat:
                version.isolated = None
                self.pump(version)

    def retire(self, version: Version) -> None:
        """The version may be called no more: those who wait are told, what runs ends as usual."""
        error = FunctionNotFound(f"{version.ref} was deleted while the call waited")
        for call in [*version.suspects, *version.queue]:
            self.give_up(call, error, error.code)
        if not version.members and self.versions.get(version.ref) is version:
            del self.versions[version.ref]

    # ---- boots -------------------------------------------------------------------------------------------------

    def boot_failed(self, failure: BootFailure) -> None:
        """A version could not be brought up: while nobody serves it, those who wait get the real error."""
        version = self.versions.get(failure.ref)
        if version is None or version.members:
            return
        version.boot_failure = failure
        error = boot_error(failure, failure.retry_at_s - time.time())
        for call in [*version.suspects, *version.queue]:
            self.give_up(call, error, error.code)
        self.guard.load_failed(version, failure)

    def note_cold(self, version: Version) -> None:
        """Calls that wait now that the last instance is gone wait for a cold start: tell at once."""
        if version.num_queued and not version.members:
            for call in version.queue:
                call.cold = True
            self._on_demand(version)
