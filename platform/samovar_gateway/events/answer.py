"""An invocation answered by server-sent events, of any function, to a caller whose `Accept` prefers them.

    begin ─► wait ─► output, progress, log … ─► done      the whole response
              │                      └────────► error     and the connection is closed without the final chunk
              ├─ refused or failed before anything was sent: a problem document with its status, as ever
              └─ OPENING_AFTER_S of silence: 200 and a comment; from then on every HEARTBEAT_S of silence another

Everything is in the order in which the instance sent it. What waits here is bounded: items by the stream's credit,
which flows back as the client reads, what the handler says by `heard.py`. This module does not know instances.
"""

from __future__ import annotations

import asyncio
import logging
import time
from http import HTTPStatus
from typing import Any

import msgspec
from litestar.types import Send

from samovar.errors import RequestError, SamovarError
from samovar.wire import LogLine, Progress, Result
from samovar_dispatch.ask import Ask
from samovar_dispatch.call import Call, Outcome
from samovar_dispatch.stream import ChunkStream
from samovar_gateway import problems
from samovar_gateway.events import encoding
from samovar_gateway.events.accept import MENTION, prefers_events
from samovar_gateway.events.heard import Heard
from samovar_gateway.state import GatewayState
from samovar_gateway.timing import phases_ms

log = logging.getLogger(__name__)

OPENING_AFTER_S = 2.0  # refusals that come sooner keep their status
HEARTBEAT_S = 3.0
NDJSON = "application/x-ndjson"
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


def wants_events(ask: Ask, accept: bytes) -> bool:
    """Return whether the caller prefers events to what the function answers otherwise.

    Raises: RequestError if it wants to go on with an earlier answer: it would be run again and told from the start.
    """
    if MENTION not in accept.lower():
        return False
    usual = NDJSON if ask.entry.streams else encoding.JSON
    if not prefers_events(accept.decode("latin-1"), usual):
        return False
    if b"last-event-id" in ask.header:
        raise RequestError("the events of an invocation cannot be resumed; without Last-Event-ID it is run again")
    return True


class EventAnswer:
    """One answer. Makes itself the ask's listener; to be run once."""

    def __init__(self, state: GatewayState, ask: Ask, send: Send) -> None:
        self._state = state
        self._ask = ask
        self._send = send
        self._news = asyncio.Event()
        self._heard = Heard()
        self._call: Call | None = None
        self._stream: ChunkStream | None = None  # every outcome is one, once it is there
        self._content_type = encoding.JSON
        self._num_events = 0
        self._is_open = False
        self._quiet_since_s = time.monotonic()
        ask.deliver = self._deliver
        ask.hear = self._hear

    async def run(self, body: bytes) -> None:
        """Begin the invocation and tell of it until it is over.

        Raises: SamovarError while nothing was sent; Cancelled when the caller left.
        """
        self._state.journey.begin(self._ask, body)
        try:
            await self._tell()
        except SamovarError as error:
            if not self._is_open:
                raise
            self._state.problems[error.code] += 1
            await self._write(self._event("error", problems.encode(error, self._ask.request_id.decode("latin-1"))))
            return  # leaving the response open makes the server close the connection
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    def _deliver(self, call: Call | None, outcome: Outcome) -> None:
        """Take the outcome: whatever it is, the rest of it is read as a stream."""
        self._call = call
        if isinstance(outcome, ChunkStream):
            self._stream = outcome
        else:
            self._stream = ChunkStream(asyncio.get_running_loop(), _nobody_waits)
            if isinstance(outcome, Result):
                self._content_type = outcome.content_type
                self._stream.wait_us, self._stream.run_us = outcome.wait_us, outcome.run_us
                self._stream.feed(outcome.body)
                self._stream.finish()
            else:
                self._stream.finish(outcome)
        self._stream.on_news = self._news.set
        self._news.set()

    def _hear(self, message: Progress | LogLine) -> None:
        self._heard.add(self._stream.num_fed if self._stream is not None else 0, message)
        self._news.set()

    # ---- telling -------------------------------------------------------------------------------------------------

    async def _tell(self) -> None:
        """Tell everything up to the clean end. Raises: what the call came to; Cancelled."""
        while True:
            self._news.clear()
            data = self._next()
            if data is not None:
                await self._write(data)
            elif self._stream is not None and self._stream.is_over:
                await self._write(self._event("done", self._receipt(self._stream)))
                return
            else:
                await self._wait()

    def _next(self) -> bytes | None:
        """Return the next event that is there, None if none is."""
        stream = self._stream
        said = self._heard.take(stream.num_taken if stream is not None else 0)
        if isinstance(said, Progress):
            data = {"fraction": said.fraction, "message": said.message}
            return self._event("progress", msgspec.json.encode(data))
        if said is not None:
            return self._event("log", msgspec.json.encode({"line": said.line}))
        chunk = stream.take() if stream is not None else None
        if chunk is None:
            return None
        return self._event("output", encoding.as_json(self._content_type, chunk))

    async def _wait(self) -> None:
        """Wait for news; when it was quiet for long, say so to whoever keeps the line open, and return, too."""
        patience_s = HEARTBEAT_S if self._is_open else OPENING_AFTER_S
        try:
            async with asyncio.timeout(self._quiet_since_s + patience_s - time.monotonic()):
                await self._news.wait()
        except TimeoutError:
            await self._write(encoding.comment(self._whereabouts()))

    def _whereabouts(self) -> str:
        """Return where the call is: what a person who reads the raw stream wants to know."""
        ask = self._ask
        place = ask.handle.place() if ask.handle is not None else None
        if place is None or ask.version is None:
            return "running"
        phase = self._state.dispatcher.room.phase(ask.version)
        return f"waiting, phase {phase}, {place} ahead"

    async def _write(self, data: bytes) -> None:
        if not self._is_open:
            self._is_open = True
            await self._send({"type": "http.response.start", "status": HTTPStatus.OK, "headers": self._headers()})
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
        self._quiet_since_s = time.monotonic()

    def _headers(self) -> problems.Headers:
        headers = [*HEADERS, (b"x-request-id", self._ask.request_id)]
        if self._call is not None:
            headers.append((b"samovar-version", self._call.version.label))
        return [*headers, *self._ask.more_headers]

    def _event(self, kind: str, data: bytes) -> bytes:
        self._num_events += 1
        return encoding.event(self._num_events, kind, data)

    def _receipt(self, stream: ChunkStream) -> bytes:
        """Return what headers would say if they came last."""
        said = {name.decode(): value.decode("latin-1") for name, value in self._ask.more_headers}
        receipt: dict[str, Any] = {"num_outputs": stream.num_taken}
        if self._call is not None:
            said["samovar-version"] = self._call.version.label.decode()
            receipt["timing_ms"] = phases_ms(self._call, stream.wait_us, stream.run_us)
        return msgspec.json.encode({**receipt, "headers": said})


def _nobody_waits(_num_chunks: int) -> None:
    """Give no credit: nothing more comes."""
