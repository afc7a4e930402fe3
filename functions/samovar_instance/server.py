"""The I/O thread's half of a ready instance: admits calls, hands them over, writes their ends, drains.

    frames in → admit → hand over (once per loop turn) → model thread → collect → frames out (once per loop turn)

One timer stands at the next deadline: a call that has not started is failed, a coroutine is cancelled, a call that
overruns by the grace ends the process. A caller that leaves makes its deadline now. What is in flight is the set of
calls itself, never a counter.
This module does not know handlers, batches or torch.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace

from samovar import wire
from samovar.errors import ProtocolError
from samovar.lifecycle import State
from samovar.spec import Manifest, concurrency
from samovar.tensor_codec import MEDIA_TYPE as TENSORS
from samovar_instance import deadlines, failures
from samovar_instance.calls import MAX_TIMEOUT_S, Call, Event, Kind
from samovar_instance.connection import Connection
from samovar_instance.contexts import Reports
from samovar_instance.failures import Fault
from samovar_instance.leaks import Room
from samovar_instance.mailbox import Mailbox
from samovar_instance.vitals import Vitals

logger = logging.getLogger("samovar.instance")

EXIT_OVERRUN = 70
EXIT_DEVICE_LOST = 71
EXIT_DRAIN_TIMEOUT = 72


class Server:
    """All state of a ready instance that the I/O thread owns.

    token: what callers must present. on_end: called once with the exit code when nothing is left to do.
    """

    def __init__(
        self, welcome: wire.Welcome, token: str, manifest: Manifest, mailbox: Mailbox, on_end: Callable[[int], None]
    ) -> None:
        self.token = token
        self.connections: set[Connection] = set()
        self.num_unknown_ids = 0
        self._welcome = welcome
        self._mailbox = mailbox
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._calls: set[Call] = set()
        self._num_slots = concurrency(manifest)
        self._reports = Reports(self._loop)
        self._runs_as_one = manifest.batch is not None or manifest.handler in ("sync", "generator")
        self._content_type = "application/x-ndjson" if "generator" in manifest.handler else "application/json"
        self._grace_s = manifest.limits.overrun_grace_s
        self._staged: list[Call] = []
        self._staged_jobs: list[Call] = []
        self._unflushed: list[Connection] = []
        self._is_flush_due = False
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at_s = float("inf")
        self._is_draining = False
        self._drain_until_s = float("inf")
        self._has_ended = False
        self._vitals = Vitals()
        self._room = Room()
        self._may_leak = False
        mailbox.on_results(lambda: self._loop.call_soon_threadsafe(self._collect))

    def now_s(self) -> float:
        """Return monotonic seconds."""
        return time.monotonic()

    def welcome(self) -> wire.Welcome:
        """Return the answer to a Hello."""
        self._welcome.state = self._state
        return self._welcome

    @property
    def _state(self) -> State:
        return State.DRAINING if self._is_draining else State.READY

    # ---- calls in

    def admit(self, connection: Connection, invoke: wire.Invoke) -> None:
        """Take a call, or say busy: for a queued job as soon as every slot is taken, it waits for nobody here.

        Raises: ProtocolError if its id is in flight already.
        """
        if invoke.id in connection.calls:
            raise ProtocolError(f"the id {invoke.id} is in flight already")
        load = len(self._calls)
        staged, ahead = (self._staged, wire.MAX_PIPELINED) if invoke.job is None else (self._staged_jobs, 0)
        if load >= self._num_slots + ahead or self._is_draining:
            connection.send(wire.Busy(invoke.id, load, self._is_draining))
            return
        call = Call(connection, invoke, time.monotonic())
        connection.calls[invoke.id] = call
        self._calls.add(call)
        if not (self._staged or self._staged_jobs):
            self._loop.call_soon(self._hand_over)
        staged.append(call)
        if call.deadline_s < self._alarm_at_s:
            self._set_alarm(call.deadline_s)

    def check(self, connection: Connection, check: wire.Check) -> None:
        """Take a call of the version's own check, or say busy. Raises ProtocolError if its id is in flight already."""
        self.admit(connection, wire.Invoke(check.id, b"", check.timeout_ms))
        call = connection.calls.get(check.id)
        if call is not None:
            call.is_check = True  # before it is handed over, at the end of this loop turn

    def _hand_over(self) -> None:
        staged, self._staged = self._staged, []
        jobs, self._staged_jobs = self._staged_jobs, []
        self._mailbox.put(staged, jobs)

    def cancel(self, connection: Connection, cancel: wire.Cancel) -> None:
        """The caller left: withdraw the call, or tell whoever runs it to stop, which it has the grace to do.

        Unknown ids are counted.
        """
        call = connection.calls.get(cancel.id)
        if call is None:
            self.num_unknown_ids += 1
        elif self._withdraw(call):
            self._end_with_fault(call, failures.CANCELLED)
        elif not cancel.if_waiting:
            self._stop(call)
            if not cancel.patient:
                call.deadline_s = min(call.deadline_s, self.now_s())
                self._set_alarm(min(self._alarm_at_s, call.deadline_s + self._grace_s))

    def _stop(self, call: Call) -> None:
        call.is_cancelled = True
        self._interrupt(call)

    def credit(self, connection: Connection, call_id: int, num_chunks: int) -> None:
        """Let a stream send more. Raises ProtocolError for a senseless amount; unknown ids are counted."""
        call = connection.calls.get(call_id)
        if call is None:
            self.num_unknown_ids += 1
            return
        if not 0 < num_chunks <= 1_000_000:
            raise ProtocolError(f"credit of {num_chunks} chunks")
        call.num_granted += num_chunks
        (call.resume or self._mailbox.nudge)()

    def forget(self, connection: Connection) -> None:
        """The connection is gone: nobody wants its calls. What runs and cannot be stopped keeps its own deadline: a
        gateway that dies does not take busy instances with it."""
        self.connections.discard(connection)
        for call in list(connection.calls.values()):
            if self._withdraw(call):
                self._end_with_fault(call, failures.CANCELLED)
            else:
                self._stop(call)
        self._end_if_drained()

    def _withdraw(self, call: Call) -> bool:
        for staged in (self._staged, self._staged_jobs):
            if call in staged:
                staged.remove(call)
                return True
        return self._mailbox.withdraw(call)

    def _interrupt(self, call: Call) -> None:
        (call.stop or self._mailbox.nudge)()

    # ---- ends out

    def _collect(self) -> None:
        for event in self._mailbox.collect():
            self._tell(event)
        self.flush()
        self._end_if_drained()

    def _tell(self, event: Event) -> None:
        kind, call, payload = event
        if kind is Kind.RESULT:
            if call.is_cancelled:
                self._end_with_fault(call, failures.CANCELLED)
            else:
                self._end_with_result(call, payload)
        elif kind is Kind.CHUNK:
            call.connection.send(wire.Chunk(call.id, payload))
        elif kind is Kind.FAILURE:
            self._end_with_fault(call, payload)
        elif kind is Kind.END:
            load = self._discard(call)
            self._vitals.completed += 1
            call.connection.send(wire.End(call.id, call.wait_us, call.run_us, load))
        elif kind is Kind.STARTED:
            call.connection.send(wire.Started(call.id))
        else:
            self._reports.hear(kind, call, payload)

    def _end_with_result(self, call: Call, body: bytes) -> None:
        load = self._discard(call)
        self._vitals.completed += 1
        if len(body) > wire.MAX_FRAME_BYTES - 1024:
            fault = Fault("bad_output", 500, f"the output is {len(body)} bytes, more than one answer can carry")
            self._end_with_fault(call, fault)
            return
        content_type = self._content_type if call.accept != TENSORS else TENSORS
        call.connection.send(wire.Result(call.id, body, call.wait_us, call.run_us, call.batch_size, load, content_type))

    def _end_with_fault(self, call: Call, fault: Fault) -> None:
        load, started = self._discard(call), call.started_at_s > 0
        self._vitals.failed += 1
        call.connection.send(
            wire.Failure(
                call.id, fault.code, fault.status, fault.detail, fault.extra, call.wait_us, call.run_us, load, started
            )
        )
        self._may_leak = self._may_leak or fault.extra.get("reason") == failures.OUT_OF_MEMORY
        if fault.must_exit:
            logger.error("the device context is lost, this process ends: %s", fault.detail)
            self._abandon(EXIT_DEVICE_LOST, "device_lost")

    def _discard(self, call: Call) -> int:
        """Take an ended call out of what is in flight; return what is left."""
        if call.context is not None:
            self._reports.end(call, call.context)
        self._calls.discard(call)
        call.connection.calls.pop(call.id, None)
        if not self._calls:
            self._vitals.became_idle()
        return len(self._calls)

    # ---- joined writes

    def will_flush(self, connection: Connection) -> None:
        """Have the connection flushed at the end of this loop turn."""
        self._unflushed.append(connection)
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write every connection's queued frames."""
        self._is_flush_due = False
        unflushed, self._unflushed = self._unflushed, []
        for connection in unflushed:
            connection.flush()

    # ---- deadlines

    def _set_alarm(self, at_s: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at_s = at_s
        delay_s = min(max(0.0, at_s - self.now_s()), MAX_TIMEOUT_S)
        self._alarm = self._loop.call_later(delay_s, self._on_alarm) if at_s < float("inf") else None

    def _on_alarm(self) -> None:
        now_s = self.now_s()
        for call in [call for call in self._calls if call.deadline_s <= now_s]:
            self._expire(call)
        overrun_s = self._overrun_s(now_s)
        if overrun_s >= self._grace_s and overrun_s > 0:
            self._give_up_overrun(overrun_s, now_s)
        elif now_s >= self._drain_until_s:
            logger.error("drain: %d calls did not end in time", len(self._calls))
            self._abandon(EXIT_DRAIN_TIMEOUT, "drain")
        else:
            self._set_alarm(min(self._drain_until_s, deadlines.next_look_s(self._calls, now_s, self._grace_s)))

    def _expire(self, call: Call) -> None:
        if self._withdraw(call):
            self._end_with_fault(call, failures.expired("queue"))
        elif not call.is_expired:
            call.is_expired = True
            self._interrupt(call)

    def _overrun_s(self, now_s: float) -> float:
        return deadlines.overrun_s(self._calls, now_s, runs_as_one=self._runs_as_one)

    def _give_up_overrun(self, overrun_s: float, now_s: float) -> None:
        late = [call for call in self._calls if call.started_at_s and call.deadline_s <= now_s]
        reason, since = "overrun", "its deadline passed"
        if all(call.is_cancelled or call.job is not None for call in late):  # the deadline of a job is its owner's
            reason, since = "abandoned", "its caller left"
        logger.error("a call goes on %.1f s after %s and cannot be stopped: this process ends", overrun_s, since)
        for call in late:
            fault = failures.CANCELLED if call.is_cancelled else failures.expired("run")
            self._end_with_fault(call, replace(fault, extra={**fault.extra, failures.ENDED_INSTANCE: True}))
        self._abandon(EXIT_OVERRUN, reason)

    # ---- the end

    def drain(self, timeout_s: float | None, *, if_idle: bool = False) -> None:
        """Admit no more, give back what has not started, finish what runs, then end.

        timeout_s: None waits for the longest deadline in flight, and the grace. if_idle: only if nothing is in flight;
        otherwise answer with Stats and go on.
        """
        if if_idle and self._calls:
            self._push_stats()
            return
        if self._is_draining:
            return
        self._is_draining = True
        self._send_all(wire.Goodbye("drain", "this instance drains"))
        self._give_back_waiting()
        now_s = self.now_s()
        longest_s = max((call.deadline_s - now_s for call in self._calls), default=0.0) + self._grace_s
        self._drain_until_s = now_s + (longest_s if timeout_s is None else timeout_s)
        self._set_alarm(min(self._drain_until_s, self._alarm_at_s))
        self._end_if_drained()

    def _give_back_waiting(self) -> None:
        for call in list(self._calls):
            if self._withdraw(call):
                call.connection.send(wire.Busy(call.id, self._discard(call), draining=True))

    def _end_if_drained(self) -> None:
        if self._is_draining and not self._calls:
            self._end(0)

    def _abandon(self, exit_code: int, reason: str) -> None:
        """End although calls are in flight: those that never started are given back, the others lose their instance."""
        self._is_draining = True
        self._give_back_waiting()
        self._send_all(wire.Goodbye(reason, "this instance ends now"))
        self._end(exit_code)

    def _end(self, exit_code: int) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._push_stats()
            self.flush()
            self._on_end(exit_code)

    def _send_all(self, message: wire.Message) -> None:
        for connection in list(self.connections):
            if connection.hello is not None:
                connection.send(message)

    # ---- once a second

    def tick(self) -> None:
        """Push Stats when they changed or are old, close connections that hang, leave when the memory has leaked."""
        now_s = self.now_s()
        for connection in list(self.connections):
            connection.drop_if_stale(now_s)
        if self._may_leak:
            self._leave_if_leaked()
        stats = self._vitals.news(self._state, len(self._calls), self._overrun_s(now_s))
        if stats is not None:
            self._tell_managers(stats)

    def _leave_if_leaked(self) -> None:
        """Judged here and not when a call fails: what it held is free only once its frames are gone."""
        self._may_leak = False
        if self._room.is_gone():
            logger.error("the memory that a call ran out of does not come back: this instance leaves, to be replaced")
            self.drain(None)

    def _push_stats(self) -> None:
        self._tell_managers(self._vitals.tell(self._state, len(self._calls), self._overrun_s(self.now_s())))

    def _tell_managers(self, stats: wire.Stats) -> None:
        for connection in list(self.connections):
            if connection.is_manager:
                connection.send(stats)
