"""The context of a call, and the way of what its handler says to the I/O thread, which sends it on.

    model thread   ctx.progress, ctx.log ─► mailbox     at most one progress of a call, and 100 lines a second
    I/O thread     Reports: a Progress frame every 0.1 s, the last one before the call's own end; LogLine frames

Somebody listens to queued jobs, and to calls that ask for it (`wire.Invoke.hear`). What is said once the call has ended
is dropped. This module does not know handlers or sockets.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from samovar import wire
from samovar.context import Context
from samovar_instance.calls import Call, Kind

if TYPE_CHECKING:
    from samovar_instance.mailbox import Mailbox

PROGRESS_EVERY_S = 0.1
MAX_MESSAGE_BYTES = 1024
MAX_LINE_BYTES = 8 * 1024
MAX_LINES_PER_S = 100


class LineQuota:
    """Lets MAX_LINES_PER_S lines of each second through, and counts the others. num_dropped: not told of yet."""

    __slots__ = ("_num_left", "_second", "num_dropped")

    def __init__(self) -> None:
        self.num_dropped = 0
        self._second = -1
        self._num_left = 0

    def take(self, now_s: float) -> bool:
        """Return whether one more line may go. now_s: seconds, never going back."""
        second = int(now_s)
        if second != self._second:
            self._second, self._num_left = second, MAX_LINES_PER_S
        if self._num_left <= 0:
            self.num_dropped += 1
            return False
        self._num_left -= 1
        return True

    def excuse(self) -> str:
        """Return what stands for the lines that were dropped, "" if none was; they are forgotten."""
        num, self.num_dropped = self.num_dropped, 0
        return f"[samovar] {num} lines more: only {MAX_LINES_PER_S} a second are kept" if num else ""


class CallContext(Context):
    """The context of `call`. quota: of its lines. due_s: when the next progress may be sent, monotonic seconds."""

    __slots__ = ("_call", "_is_over", "_is_rung", "_latest", "_mailbox", "due_s", "quota")

    def __init__(self, mailbox: Mailbox, call: Call) -> None:
        super().__init__(request_id=call.request_id, deadline=call.deadline_s, tenant=call.tenant)
        if call.job is not None:
            self.job_id, self.attempt, self.token = call.job.job_id, call.job.attempt, call.job.token
        self.quota = LineQuota()
        self.due_s = 0.0
        self._mailbox = mailbox
        self._call = call
        self._latest = (0.0, "")
        self._is_rung = False
        self._is_over = not call.is_heard

    @property
    def cancelled(self) -> bool:
        """Whether nobody wants the answer any more; the I/O thread says so while the handler computes."""
        return self._call.is_cancelled or super().cancelled

    def take(self) -> wire.Progress | None:
        """Return the latest that was not sent yet, None if there is none. For the I/O thread."""
        if not self._is_rung:
            return None
        self._is_rung = False  # first: what comes after this rings again, what came before is in `_latest`
        fraction, message = self._latest
        return wire.Progress(self._call.id, fraction, cut(message, MAX_MESSAGE_BYTES))

    def close(self) -> None:
        """The call has ended: nothing more is passed on."""
        self._is_over = True

    def _say_progress(self, fraction: float, message: str) -> None:
        if self._is_over:
            return
        self._latest = (fraction, message)
        if not self._is_rung:
            self._is_rung = True
            self._mailbox.emit(Kind.PROGRESS, self._call)

    def _say_line(self, line: str) -> None:
        if self._is_over or not self.quota.take(time.monotonic()):
            return
        if self.quota.num_dropped:
            self._mailbox.emit(Kind.LINE, self._call, self.quota.excuse())
        self._mailbox.emit(Kind.LINE, self._call, cut(line, MAX_LINE_BYTES))


def context_of(mailbox: Mailbox, call: Call) -> CallContext:
    """Return the one context of `call`, made at the first asking."""
    if call.context is None:
        call.context = CallContext(mailbox, call)
    return call.context


def cut(text: str, max_bytes: int) -> str:
    """Return the beginning of `text` that fits `max_bytes` of UTF-8; half surrogates are written out."""
    return text.encode(errors="backslashreplace")[:max_bytes].decode(errors="ignore")


class Reports:
    """The I/O thread's half: sends what handlers say, no more often than anybody can read it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def hear(self, kind: Kind, call: Call, payload: Any) -> None:
        """The handler of `call` said something; dropped once the call has ended."""
        context = call.context
        if context is None or call.connection.calls.get(call.id) is not call:
            return
        if kind is Kind.LINE:
            call.connection.send(wire.LogLine(call.id, payload))
        elif (delay_s := context.due_s - time.monotonic()) > 0.0:
            self._loop.call_later(delay_s, self._send, call, context)
        else:
            self._send(call, context)  # in front of what was sent after it

    def end(self, call: Call, context: CallContext) -> None:
        """The call ends now: what is still to be said goes in front of its last frame."""
        context.close()
        self._send(call, context)
        excuse = context.quota.excuse()
        if excuse:
            call.connection.send(wire.LogLine(call.id, excuse))

    def _send(self, call: Call, context: CallContext) -> None:
        progress = context.take()
        if progress is not None:
            context.due_s = time.monotonic() + PROGRESS_EVERY_S
            call.connection.send(progress)
