"""What instances say, and what it means for the calls they hold: our side of `connection.Listener`.

    Result, Failure, End   the call ended: its slot is free, its outcome goes out
    Chunk, Started         it goes on; a chunk of a version that does not stream ends it
    Progress, LogLine      the handler says something to whoever listens
    Busy                   it never started: back to the head, this instance left alone for a moment (`narrowing.py`
                           says what of a job)
    Goodbye                nothing more for this instance
    lost                   each call it held is dropped, sent elsewhere, retried alone or failed (`retry.py`)

An id that nobody knows any more is dropped and counted. This module does not know sockets or deadlines.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import TYPE_CHECKING

from samovar import wire
from samovar.errors import Draining, InstanceLost, ProtocolError, rebuild
from samovar_dispatch.ask import RETRIED
from samovar_dispatch.call import Call, Version
from samovar_dispatch.connection import InstanceConnection
from samovar_dispatch.narrowing import Narrowing, is_tired, no_slot
from samovar_dispatch.recall import CANCELLED, ask_back
from samovar_dispatch.requestlog.copies import copy_for
from samovar_dispatch.retries.retry import Verdict, after_loss, may_have_started
from samovar_dispatch.slots import prefetch_allowance, smoothed
from samovar_dispatch.stream import ChunkStream
from samovar_dispatch.waiting.concurrency import GradientLimit

if TYPE_CHECKING:
    from samovar_dispatch.dispatcher import Dispatcher

log = logging.getLogger(__name__)

BUSY_BACKOFF_S = 0.01
MAX_BUSY_BACKOFF_S = 0.16
LAST_WORD_S = 0.1  # how long calls that are lost wait for the pool manager to say why: it usually takes milliseconds
JOBS_LAST_WORD_S = 1.0  # the same of queued jobs: nobody is in a hurry, and the reason is kept with them
BREAKDOWNS = ("overrun", "device_lost")  # goodbyes of an instance that cannot go on
STOPPED = ("overrun", "abandoned")  # … whose culprits were told, so that whoever it still holds is none


class Reception:
    """One per dispatcher, shared by all its connections."""

    def __init__(self, dispatcher: Dispatcher, loop: asyncio.AbstractEventLoop) -> None:
        self._dispatcher = dispatcher
        self._loop = loop
        self._narrowing = Narrowing(dispatcher, loop)
        self._bereaved: dict[str, list[Call]] = {}

    def on_result(self, connection: InstanceConnection, message: wire.Result) -> None:
        """The call has its answer; its service time tells how far ahead this version may be fed."""
        call = connection.in_flight.pop(message.id, None)
        if call is None:
            self._dispatcher.late_replies += not connection.check_ended(message.id, None)
            return
        version = call.version
        self._measure(call, message.run_us, message.batch_size)
        if version.adapts:
            self._adapt(connection, call, message.run_us)
        version.stats.run_sum_s += message.run_us * 1e-6
        connection.num_busy = 0
        self._dispatcher.release(connection, version)
        if call.done:
            self._dispatcher.late_replies += 1
            call.let_go()
        else:
            self._dispatcher.finish(call, message, "ok")

    def on_failure(self, connection: InstanceConnection, message: wire.Failure) -> None:
        """The call ended with an error, or was given back."""
        call = connection.in_flight.get(message.id)
        if call is not None and call.recalled and message.code == CANCELLED:
            del connection.in_flight[message.id]
            if connection.seat.load <= connection.seat.slots:  # its slot is somebody else's
                self._leave_alone(connection, call.version, for_good=False)
            self._return(call)
            self._dispatcher.release(connection, call.version)
            return
        if call is None and connection.check_ended(message.id, message.detail):
            return
        if call is not None and message.started:
            call.version.stats.run_sum_s += message.run_us * 1e-6
            if message.run_us * 1e-6 > call.version.service_s:
                self._measure(call, message.run_us, 1)  # it was stopped, or failed, later than calls usually end
        with_instance = bool(message.extra.get("ended_instance"))
        if self._ended(connection, message.id, with_instance=with_instance) is not None and call is not None:
            self._dispatcher.fail(call, rebuild(message.code, message.status, message.detail, message.extra))

    def on_end(self, connection: InstanceConnection, message: wire.End) -> None:
        """The stream is complete."""
        held = connection.in_flight.get(message.id)
        if held is not None:
            self._measure(held, message.run_us, 1)
            held.version.stats.run_sum_s += message.run_us * 1e-6
        call = self._ended(connection, message.id)
        if call is not None and not call.version.streams:
            self._dispatcher.fail(call, _undeclared(call.version))
        elif call is not None:
            stream = self._stream_of(call)
            stream.wait_us, stream.run_us = message.wait_us, message.run_us
            stream.finish()
            self._dispatcher.finish(call, stream, "ok")

    def on_chunk(self, connection: InstanceConnection, message: wire.Chunk) -> None:
        """One more item of a stream; the first one is the call's outcome."""
        call = connection.in_flight.get(message.id)
        if call is None or call.done:
            self._dispatcher.late_replies += 1
            return
        if not call.version.streams:
            error = _undeclared(call.version)
            self._dispatcher.give_up(call, error, error.code)
            return
        if call.stream is None:
            call.version.pace.began(time.monotonic() - call.sent_s)
        stream = self._stream_of(call)
        stream.feed(message.body)
        self._dispatcher.deliver(call, stream)

    def on_started(self, connection: InstanceConnection, message: wire.Started) -> None:
        """User code has the call now: it is lost if the instance is."""
        call = connection.in_flight.get(message.id)
        if call is not None:
            call.started = True

    def on_said(self, connection: InstanceConnection, message: wire.Progress | wire.LogLine) -> None:
        """The handler says how far it is, or something else: for whoever asked."""
        call = connection.in_flight.get(message.id)
        if call is not None and not call.done:
            call.ask.hear(message)

    def on_busy(self, connection: InstanceConnection, message: wire.Busy) -> None:
        """The call never started: it goes back to the head, and this instance is left alone for a moment."""
        call = connection.in_flight.pop(message.id, None)
        if call is None:
            self._dispatcher.late_replies += not connection.check_ended(message.id, "busy", was_busy=True)
            return
        version, now_s = call.version, time.monotonic()
        if call.ask.job is not None and connection.in_flight and not message.draining:
            self._narrowing.narrow(connection, version)
        else:
            self._leave_alone(connection, version, for_good=message.draining)
        if call.done or message.draining or not is_tired(call, now_s):
            self._return(call)
        else:
            call.seat = None
            self._dispatcher.fail(call, no_slot(call))
        self._dispatcher.release(connection, version)

    def _leave_alone(self, connection: InstanceConnection, version: Version, *, for_good: bool) -> None:
        version.seats.close(connection.seat)
        if version.isolated is connection.seat:
            version.isolated = None
        if for_good:
            connection.opened = False
        else:
            delay_s = min(BUSY_BACKOFF_S * 2**connection.num_busy, MAX_BUSY_BACKOFF_S)
            connection.num_busy = min(connection.num_busy + 1, 10)
            self._loop.call_later(delay_s, self._dispatcher.reopen, connection, version)

    def on_goodbye(self, connection: InstanceConnection, message: wire.Goodbye) -> None:
        """The instance takes no more; what it holds still ends there."""
        connection.farewell = message.reason
        version = self._dispatcher.versions.get(connection.record.ref)
        if version is not None and connection.opened and message.reason in BREAKDOWNS:
            self._dispatcher.guard.crashed(version, time.monotonic())
        self._dispatcher.stop_sending(connection)
        if message.reason != "drain":
            log.warning(
                "instance %s says goodbye: %s %s", connection.record.instance_id, message.reason, message.detail
            )

    def on_open(self, connection: InstanceConnection) -> None:
        """An instance is ready for calls: those that waited for one go out."""
        version = self._dispatcher.versions.get(connection.record.ref)
        if version is None:
            connection.close("its version was deleted")
            return
        version.members[connection.record.instance_id] = connection
        version.boot_failure = None
        version.boots.arrived(connection.record.instance_id, sum(connection.record.boot_ms.values()) / 1e3)
        if version.adapts:
            connection.limit = GradientLimit(connection.seat.slots)
        self._dispatcher.guard.loaded(version)
        version.seats.open(connection.seat)
        self._dispatcher.pump(version)
        if connection.seat.load < connection.seat.slots:
            ask_back([member for member in version.members.values() if member is not connection], time.monotonic())

    def on_lost(self, connection: InstanceConnection) -> None:
        """The connection is gone: each call it held is dropped, sent elsewhere, retried alone or failed."""
        was_serving, connection.opened = connection.opened, False
        version = self._dispatcher.versions.get(connection.record.ref)
        if version is None:
            return
        if version.members.get(connection.record.instance_id) is connection:
            del version.members[connection.record.instance_id]
        version.seats.close(connection.seat)
        if connection.seat is version.isolated:
            version.isolated = None
        returning: list[Call] = []
        now_s = time.monotonic()
        for position, call in enumerate(connection.in_flight.values()):
            if self._after_loss(call, position, connection, now_s) is Verdict.REDISPATCH:
                returning.append(call)
        connection.in_flight.clear()
        self._await_last_word(connection)
        version.stats.redispatched += len(returning)
        version.queue.put_back(returning)
        if was_serving:
            self._dispatcher.guard.crashed(version, now_s)
        self._dispatcher.pump(version)
        self._dispatcher.note_cold(version)

    def _await_last_word(self, connection: InstanceConnection) -> None:
        """Fail the calls that ended with an instance once it is known why it did, soon in any case."""
        instance_id = connection.record.instance_id
        if connection.ended is not None:
            self.explain(instance_id, connection.ended)
        if instance_id in self._bereaved:
            self._loop.call_later(LAST_WORD_S, self.explain, instance_id, "")
            self._loop.call_later(JOBS_LAST_WORD_S, partial(self.explain, instance_id, "", is_last=True))

    def explain(self, instance_id: str, why: str, *, is_last: bool = False) -> None:
        """The calls that ended with this instance fail, and say why: a sentence, "" if that is not known.

        Queued jobs wait for a sentence until the last word.
        """
        bereaved = self._bereaved.pop(instance_id, [])
        patient = [call for call in bereaved if call.ask.job is not None and not why and not is_last]
        if patient:
            self._bereaved[instance_id] = patient
        for call in bereaved:
            if not call.done and call not in patient:
                detail = f"instance {instance_id} was lost while running the call"
                self._dispatcher.fail(call, InstanceLost(f"{detail}: {why}" if why else detail))

    def _mourn(self, call: Call, instance_id: str) -> None:
        """A call ends with its instance: why will be known soon. A job that is not to blame is only given back."""
        if call.ask.job is not None and not call.num_attempts:
            detail = f"instance {instance_id} was ended because of another call"
            self._loop.call_soon(self._give_back, call, Draining(detail, retry_after_s=0.0))
        else:
            self._bereaved.setdefault(instance_id, []).append(call)

    def _give_back(self, call: Call, error: Draining) -> None:
        if not call.done:
            self._dispatcher.fail(call, error)

    def _after_loss(self, call: Call, position: int, connection: InstanceConnection, now_s: float) -> Verdict:
        version = call.version
        is_job = call.ask.job is not None
        is_begun = call.stream is not None or call.started
        started = may_have_started(position, connection.seat.slots, notified=is_begun)
        blameless = connection.farewell in STOPPED
        if started and not blameless:
            call.num_attempts += 1
            call.lost_on = connection.record.instance_id
        verdict = after_loss(
            wanted=not call.done,
            started=started,
            blameless=blameless,
            num_attempts=call.num_attempts,
            retry_on_crash=version.manifest.retry_on_crash and call.stream is None and not is_job,
            may_spend=partial(_may_retry, version, now_s),
            remaining_s=call.deadline_s - now_s,
            service_s=version.service_s,
        )
        call.seat = None
        call.recalled = False
        if verdict is Verdict.DROP:
            call.let_go(with_instance=True)
        elif verdict is Verdict.FAIL:
            self._mourn(call, connection.record.instance_id)
        elif verdict is Verdict.RETRY_ALONE:
            call.started = False
            call.ask.marks |= RETRIED
            version.stats.retried += 1
            version.suspects.append(call)
        return verdict

    def _measure(self, call: Call, run_us: int, batch_size: int) -> None:
        """Learn from the time a call took: how far ahead its version may be fed, and what others have to expect."""
        version = call.version
        now_s = time.monotonic()
        version.service_s = service_s = smoothed(version.service_s, run_us, batch_size)
        if call.ask.job is None:  # an instance takes no job ahead
            version.seats.allowance = prefetch_allowance(service_s)
        version.pace.ended(now_s, now_s - call.sent_s, service_s, is_backlogged=bool(version.queue))

    def _adapt(self, connection: InstanceConnection, call: Call, run_us: int) -> None:
        """Let an instance whose slots are a guess hold as many calls as do it good; one that is fed ahead is fast."""
        limit, seat, seats = connection.limit, connection.seat, call.version.seats
        if limit is None:
            return
        after = seat.slots
        if not seats.allowance:
            run_s = max(run_us, 1) * 1e-6
            after = limit.ended(run_s, was_alone=connection.was_alone(call), is_full=seat.load >= limit.limit)
        if after != seat.limit:
            seats.limit(seat, after)

    def reclaim(self, connection: InstanceConnection, calls: list[Call]) -> None:
        """The instance does not hear us: these calls go elsewhere, and it gets no more until it ends one.

        Their slots stay taken there: whatever it says of them later is about calls that nobody waits for.
        """
        version = calls[0].version
        log.warning(
            "instance %s of %s does not answer: %d calls go elsewhere",
            connection.record.instance_id,
            version.ref,
            len(calls),
        )
        connection.is_deaf = True
        version.seats.close(connection.seat)
        for call in calls:
            connection.in_flight[call.id] = _nobodys(call)
            self._return(call)
        self._dispatcher.pump(version)

    def _return(self, call: Call) -> None:
        call.seat = None
        call.recalled = False
        if call.done:
            call.let_go()
            return
        call.version.stats.redispatched += 1
        if call.num_attempts or call.ask.alone:
            call.version.suspects.appendleft(call)
        else:
            call.version.queue.put_back([call])

    def _ended(self, connection: InstanceConnection, number: int, *, with_instance: bool = False) -> Call | None:
        """Free the slot of an id that ended; return its call if somebody still waits for it.

        with_instance: the instance ends because of it.
        """
        call = connection.in_flight.pop(number, None)
        if call is None:
            self._dispatcher.late_replies += 1
            return None
        self._dispatcher.release(connection, call.version)
        if call.done:
            self._dispatcher.late_replies += 1
            call.let_go(with_instance=with_instance)
            return None
        return call

    def _stream_of(self, call: Call) -> ChunkStream:
        if call.stream is None:
            copy = copy_for(call.version.manifest.log)
            call.stream = ChunkStream(self._loop, partial(self._give_credit, call), copy)
        return call.stream

    def _give_credit(self, call: Call, num_chunks: int) -> None:
        if call.seat is not None and not call.done:
            call.seat.owner.send(wire.Credit(call.id, num_chunks))


def _may_retry(version: Version, now_s: float) -> bool:
    if version.retries.spend(now_s):
        return True
    version.stats.retries_refused += 1
    return False


def _undeclared(version: Version) -> ProtocolError:
    return ProtocolError(f"the instance streamed the answer of {version.ref}, which does not stream")


def _nobodys(call: Call) -> Call:
    """Return what stands for `call` on a connection that it has left: it is over."""
    left = Call(call.dispatcher, call.version, call.ask, call.owner, call.seq, call.sent_s)
    left.id, left.seat, left.done, left.delivered = call.id, call.seat, True, True
    return left
