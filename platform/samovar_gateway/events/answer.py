"""An invocation answered by server-sent events, of any function, to a caller whose `Accept` prefers them.

    begin ─► wait ─► output, progress, log … ─► done      the whole response
              │                      └────────► error     and the connection is closed without the final chunk
              ├─ refused or failed before anything was sent: a problem document with its status, as ever
              └─ OPENING_AFTER_S of silence: 200 and a comment; from then on every HEARTBEAT_S of silence another

Everything is in the order in which the instance sent it (`source.py`), and nothing waits here: the next event is made
once the last was written. What outlives its connection is `resumable.py`. This module does not know instances.
"""

from __future__ import annotations

import asyncio
import time
from http import HTTPStatus

from litestar.types import Send

from samovar.errors import SamovarError
from samovar_dispatch.ask import Ask
from samovar_gateway import problems
from samovar_gateway.events import encoding
from samovar_gateway.events.accept import MENTION, prefers_events
from samovar_gateway.events.source import Source
from samovar_gateway.state import GatewayState

OPENING_AFTER_S = 2.0  # refusals that come sooner keep their status
HEARTBEAT_S = 3.0
NDJSON = "application/x-ndjson"
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


def wants_events(ask: Ask, accept: bytes) -> bool:
    """Return whether the caller prefers events to what the function answers otherwise."""
    if MENTION not in accept.lower():
        return False
    usual = NDJSON if ask.entry.streams else encoding.JSON
    return prefers_events(accept.decode("latin-1"), usual)


class EventResponse:
    """One response of events as it is written. is_open: its status is out."""

    def __init__(self, send: Send) -> None:
        self.is_open = False
        self._send = send
        self._quiet_since_s = time.monotonic()

    @property
    def patience_s(self) -> float:
        """Seconds until something must be written."""
        patience_s = HEARTBEAT_S if self.is_open else OPENING_AFTER_S
        return self._quiet_since_s + patience_s - time.monotonic()

    async def open(self, headers: problems.Headers) -> None:
        """Send status and headers."""
        self.is_open = True
        await self._send({"type": "http.response.start", "status": HTTPStatus.OK, "headers": [*HEADERS, *headers]})

    async def write(self, data: bytes) -> None:
        """Send some bytes; return once the client reads on."""
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
        self._quiet_since_s = time.monotonic()

    async def say_nothing(self, headers: problems.Headers) -> None:
        """Answer that there is nothing more, and end."""
        self.is_open = True
        await self._send({"type": "http.response.start", "status": HTTPStatus.NO_CONTENT, "headers": [*headers]})
        await self.end()

    async def end(self) -> None:
        """End it as a whole. One that is left open instead makes the server close the connection."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


class EventAnswer:
    """One answer, whose call ends with its connection; to be run once."""

    def __init__(self, state: GatewayState, ask: Ask, send: Send) -> None:
        self._state = state
        self._ask = ask
        self._source = Source(state, ask)
        self._response = EventResponse(send)
        self._num_events = 0

    async def run(self, body: bytes) -> None:
        """Begin the invocation and tell of it until it is over.

        Raises: SamovarError while nothing was sent; Cancelled when the caller left.
        """
        self._source.begin(body)
        try:
            await self._tell()
        except SamovarError as error:
            if not self._response.is_open:
                raise
            self._state.problems[error.code] += 1
            problem = problems.encode(error, self._ask.request_id.decode("latin-1"))
            await self._write(self._event("error", problem))
        else:
            await self._response.end()

    async def _tell(self) -> None:
        """Tell everything up to the clean end. Raises: what the call came to; Cancelled."""
        source = self._source
        while True:
            source.news.clear()
            event = source.next()
            if event is not None:
                await self._write(self._event(*event))
            elif source.is_over:
                await self._write(self._event("done", source.receipt()))
                return
            else:
                await self._wait()

    async def _wait(self) -> None:
        """Wait for news; when it was quiet for long, say so to whoever keeps the line open, and return, too."""
        try:
            async with asyncio.timeout(self._response.patience_s):
                await self._source.news.wait()
        except TimeoutError:
            await self._write(encoding.comment(self._source.whereabouts()))

    async def _write(self, data: bytes) -> None:
        if not self._response.is_open:
            await self._response.open(self._source.headers())
        await self._response.write(data)

    def _event(self, kind: str, data: bytes) -> bytes:
        self._num_events += 1
        return encoding.event(self._num_events, kind, data)
