"""A stream that outlives its connections: the call goes on, and whoever comes back in time reads on where it was.

    source ─► pump ─► ledger ─► reader ─► a connection here, or another gateway (`lending.py`)
                        │  the newest reader counts; without one the generator is held back when the ledger is full
                        └─ nobody came back within `keep_s`: the call is cancelled, the stream forgotten

`ledger.py` decides, this carries out. This module does not know HTTP or Redis.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import NamedTuple

from samovar.errors import Cancelled, SamovarError, StreamTaken
from samovar_gateway import problems
from samovar_gateway.calling import abandon
from samovar_gateway.events import encoding, places
from samovar_gateway.events.ledger import Budget, Ledger
from samovar_gateway.events.source import Source

log = logging.getLogger(__name__)

MAX_BYTES = 8 << 20  # of events that one stream keeps: more than sockets hold when a slow reader's line breaks


class Told(NamedTuple):
    """One event. ends: it is the last one: "done" or "error", "" if not. data: empty if it had the end before."""

    number: int
    data: bytes
    ends: str


class Resumable:
    """One stream in the gateway that has its call. failure: what the call came to, None unless it failed."""

    def __init__(self, source: Source, keep_s: float, gateway: str, stream_id: str, budget: Budget) -> None:
        self.source = source
        self.keep_s = keep_s
        self.id = stream_id
        self.prefix = places.prefix(gateway, stream_id)
        self.ledger: Ledger[Reader] = Ledger(keep_s, MAX_BYTES, budget)
        self.failure: SamovarError | None = None
        self.end = ""
        self._room = asyncio.Event()
        self._pump = asyncio.ensure_future(self._run())

    def read(self, number: int, *, is_first: bool = False) -> Reader:
        """Return the one who reads from now on, after event `number`; who did until now is told.

        Raises: RequestError, StreamGone: see `Ledger.arrive`.
        """
        reader = Reader(self, is_first=is_first)
        before = self.ledger.arrive(reader, number)
        if before is not None:
            before.replace()
        self.moved()
        return reader

    def moved(self) -> None:
        """A reader came, went or took something."""
        if self.ledger.has_room:
            self._room.set()

    def end_call(self) -> None:
        """The call ends, if it has not, and whoever reads is told no more."""
        abandon(self.source.ask)
        if self.ledger.reader is not None:
            self.ledger.reader.cancel()

    async def close(self) -> None:
        """Return once nothing is under way any more."""
        self._pump.cancel()
        await asyncio.gather(self._pump, return_exceptions=True)
        self.ledger.close()

    async def _run(self) -> None:
        """Enter everything up to the end, as fast as there is room."""
        request_id = self.source.ask.request_id.decode("latin-1")
        try:
            await self._enter_all()
        except Cancelled:
            return
        except SamovarError as error:
            self.failure = error
        except Exception:
            log.exception("the stream of invocation %s failed", request_id)
            self.failure = SamovarError("an error inside the gateway; its log says more")
            abandon(self.source.ask)
        if self.failure is not None:
            self._enter("error", problems.encode(self.failure, request_id), ends=True)

    async def _enter_all(self) -> None:
        source = self.source
        while True:
            source.news.clear()
            event = source.next()
            if event is not None:
                self._enter(*event)
                await self._wait_for_room()
            elif source.is_over:
                self._enter("done", source.receipt(), ends=True)
                return
            else:
                await source.news.wait()

    def _enter(self, kind: str, data: bytes, *, ends: bool = False) -> None:
        if ends:
            self.end = kind
        self.ledger.add(encoding.event(self.ledger.last + 1, kind, data, self.prefix), ends=ends)
        if self.ledger.reader is not None:
            self.ledger.reader.news.set()

    async def _wait_for_room(self) -> None:
        while not self.ledger.has_room:
            self._room.clear()
            await self._room.wait()


class Reader:
    """Who reads a stream in the gateway that has it. is_first: it began the call, and was told nothing yet."""

    def __init__(self, stream: Resumable, *, is_first: bool) -> None:
        self.stream = stream
        self.is_first = is_first
        self.news = asyncio.Event()
        self._is_replaced = self._is_gone = self._is_done = False

    @property
    def headers(self) -> problems.Headers:
        """What the answer's headers say of the call."""
        return self.stream.source.headers()

    @property
    def keep_s(self) -> float:
        """How long the stream outlives this reader, seconds."""
        return self.stream.keep_s

    def take(self) -> Told | None:
        """Return the next event, None if there is none now. Raises: StreamTaken, Cancelled when it may read no more."""
        if self._is_replaced:
            raise StreamTaken("another connection goes on with this stream")
        if self._is_gone:
            raise Cancelled
        if self._is_done:
            return None
        ledger = self.stream.ledger
        taken = ledger.take(self)
        self._is_done = ledger.is_ended and ledger.taken == ledger.last
        if taken is None:
            return Told(ledger.last, b"", self.stream.end) if self._is_done else None
        self.stream.moved()
        return Told(*taken, self.stream.end if self._is_done else "")

    async def next(self, timeout_s: float) -> Told | None:
        """Return the next event, None if there is none within the time. Raises: as `take`; what the call came to, to
        the first reader that was told nothing."""
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    self.news.clear()
                    if self.is_first and self.stream.failure is not None and self.stream.ledger.last == 1:
                        raise self.stream.failure
                    if (told := self.take()) is not None:
                        return told
                    await self.news.wait()
        except TimeoutError:
            return None

    def whereabouts(self) -> str:
        """Return where the call is."""
        return self.stream.source.whereabouts()

    def cancel(self) -> None:
        """The connection is gone."""
        self._is_gone = True
        self.close()
        self.news.set()

    def replace(self) -> None:
        """Another one reads now."""
        self._is_replaced = True
        self.news.set()

    def close(self, *, is_told: bool = False) -> None:
        """It reads no more. is_told: it was told the end. Idempotent."""
        self.stream.ledger.leave(self, time.monotonic(), is_told=is_told)
        self.stream.moved()
