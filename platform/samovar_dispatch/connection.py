"""One multiplexed connection to one instance: our half of `samovar.wire`.

The frames of one turn of the loop go out in one system call: each costs the wake-up of a process. What a connection
may hold unsent is bounded by the seats its instance has, times the largest body. This module knows the wire and who
to tell; it does not know queues, retries or deadlines.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Protocol, cast

import msgspec

from samovar import wire
from samovar.errors import ProtocolError
from samovar.lifecycle import State
from samovar_dispatch.ask import unheard
from samovar_dispatch.call import Call
from samovar_dispatch.health.outliers import Health
from samovar_dispatch.slots import Seat
from samovar_dispatch.waiting.concurrency import GradientLimit
from samovar_storage.records import InstanceRecord

log = logging.getLogger(__name__)


class Listener(Protocol):
    """Whoever dispatches over connections. Each method is called from `data_received` or `connection_lost`."""

    def on_open(self, connection: InstanceConnection) -> None: ...
    def on_result(self, connection: InstanceConnection, message: wire.Result) -> None: ...
    def on_failure(self, connection: InstanceConnection, message: wire.Failure) -> None: ...
    def on_busy(self, connection: InstanceConnection, message: wire.Busy) -> None: ...
    def on_started(self, connection: InstanceConnection, message: wire.Started) -> None: ...
    def on_chunk(self, connection: InstanceConnection, message: wire.Chunk) -> None: ...
    def on_end(self, connection: InstanceConnection, message: wire.End) -> None: ...
    def on_said(self, connection: InstanceConnection, message: wire.Progress | wire.LogLine) -> None: ...
    def on_goodbye(self, connection: InstanceConnection, message: wire.Goodbye) -> None: ...
    def on_lost(self, connection: InstanceConnection) -> None: ...


class InstanceConnection(asyncio.Protocol):
    """Speaks with the instance of `record` once connected; tells `listener` what it says.

    in_flight: calls given to it whose id has not ended, by id, oldest first. opened: it welcomed us and may be given
    calls; was_open: it once was. closed: resolves when the connection is gone, to the reason in words. limit: how many
    calls do it good, where its slots are a guess. is_deaf: it was asked something and does not answer.
    is_ejected: it does worse than its peers (`ejections.py`), health: by these numbers. check_id: of the last Check.
    heard_s: when it last said anything, monotonic. farewell: the reason of its Goodbye, "" before. ended: why the
    instance is gone, as far as the pool manager knew; None until it says that it is.
    """

    def __init__(self, record: InstanceRecord, listener: Listener, peer: str) -> None:
        self.record = record
        self.in_flight: dict[int, Call] = {}
        self.seat: Seat[InstanceConnection] = Seat(self, max(1, record.concurrency))
        self.opened = self.was_open = False
        self.is_deaf = self.is_ejected = False
        self.health = Health()
        self.check_id = 0
        self.ended: str | None = None
        self.heard_s = 0.0
        self.farewell = ""
        self._told_check: Callable[[str | None, bool], object] | None = None
        self.num_busy = 0
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._peer = peer
        self.limit: GradientLimit | None = None
        self._next_id = 0
        self._crowded_id = 0  # of the last call that was sent while others were in flight
        self._reason = ""
        self._loop = asyncio.get_running_loop()
        self._unsent = bytearray()
        self._decoder = wire.caller_side()
        self._transport: asyncio.Transport | None = None
        self._handlers = {
            wire.Result: listener.on_result,
            wire.Failure: listener.on_failure,
            wire.Busy: listener.on_busy,
            wire.Started: listener.on_started,
            wire.Chunk: listener.on_chunk,
            wire.End: listener.on_end,
            wire.Progress: listener.on_said,
            wire.LogLine: listener.on_said,
            wire.Goodbye: listener.on_goodbye,
            wire.Welcome: InstanceConnection._on_welcome,
        }
        self._listener = listener

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        hello = wire.Hello(wire.PROTOCOL_VERSION, self.record.token, "gateway", self._peer)
        self._transport.write(wire.encode(hello))

    def data_received(self, data: bytes) -> None:
        self.heard_s = time.monotonic()
        try:
            for message in self._decoder.feed(data):
                handler = self._handlers.get(type(message))
                if handler is None:
                    raise ProtocolError(f"unexpected {type(message).__name__}")
                handler(self, message)  # type: ignore[operator]
        except ProtocolError as error:
            log.warning("instance %s: %s", self.record.instance_id, error.detail)
            for call in self.in_flight.values():
                call.started = True  # for all we know: what it said in front of the bad frame is lost with it
            self.close(error.detail)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(self._reason or (str(exc) if exc else "closed by the instance"))
        self._listener.on_lost(self)

    def invoke(self, call: Call, now_s: float) -> None:
        """Send `call`; from now on its id is in flight here. Raises ProtocolError if it does not fit a frame."""
        number = self._next_id = self._next_id + 1
        ask = call.ask
        self._write(
            wire.Invoke(
                number,
                ask.body,
                max(1.0, (call.deadline_s - now_s) * 1000.0),
                call.version.notify_start or ask.job is not None,
                ask.content_type,
                ask.accept_stream,
                ask.request_id.decode("latin-1"),
                ask.traceparent,
                ask.job,
                ask.hear is not unheard,
                ask.accept,
                ask.key_id,
            )
        )
        if self.in_flight:
            self._crowded_id = number
        call.id = number
        self.in_flight[number] = call

    def was_alone(self, call: Call) -> bool:
        """Return whether no other call of ours was there from when `call` was sent until now."""
        return self._crowded_id < call.id == self._next_id

    def send(self, message: wire.Cancel | wire.Credit | wire.Check) -> None:
        """Send a small message, unless the connection is gone."""
        if self._transport is not None and not self._transport.is_closing():
            self._write(message)

    @property
    def may_serve(self) -> bool:
        """Whether nothing speaks against giving it calls."""
        return self.opened and not self.is_deaf and not self.is_ejected

    def check(self, timeout_s: float, told: Callable[[str | None, bool], object]) -> None:
        """Ask the instance whether it is well. told: called once with what is wrong, None if nothing is, and whether it
        was too busy to look."""
        self.check_id = self._next_id = self._next_id + 1
        self._told_check = told
        self.send(wire.Check(self.check_id, timeout_s * 1000))

    def check_ended(self, number: int, fault: str | None, was_busy: bool = False) -> bool:
        """Return whether `number` is the id of the check in progress; if so, whoever asked for it is told."""
        if number != self.check_id or self._told_check is None:
            return False
        told, self._told_check = self._told_check, None
        told(fault, was_busy)
        return True

    def _write(self, message: wire.Message) -> None:
        """Send a message with the others of this turn of the loop. Raises ProtocolError if it does not fit a frame."""
        unsent = self._unsent
        is_first = not unsent
        wire.append(unsent, message)
        if is_first:
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(self._unsent)
        self._unsent = bytearray()

    def close(self, reason: str) -> None:
        """Close at once; calls in flight are lost. `reason` is what `closed` resolves to."""
        self._reason = self._reason or reason
        if self._transport is not None:
            self._transport.abort()

    def _on_welcome(self, message: wire.Welcome) -> None:
        expected = (wire.PROTOCOL_VERSION, self.record.ref, State.READY)
        if self.opened or (message.version, message.ref, message.state) != expected:
            raise ProtocolError(f"unexpected Welcome: {message.version}, {message.ref or 'blank'}, {message.state}")
        if self.record.boot_ms == {} and message.boot_ms:
            self.record = msgspec.structs.replace(self.record, boot_ms=message.boot_ms)
        self.seat.slots = self.seat.limit = max(1, message.concurrency)
        self.opened = self.was_open = True
        self._listener.on_open(self)
