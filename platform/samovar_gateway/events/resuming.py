"""Resumable streams over HTTP: begun with `Samovar-Resume`, gone on with by `Last-Event-ID`.

    begin  ─► a stream here ─► its first reader ─┐
    resume ─► is it here? ─► a reader ───────────┼─► tell: events as they come, heartbeats, the end
                  └─ no: borrowed from its owner ┘
    the connection breaks ─► the reader leaves, the stream stays (`resumable.py`)

The one difference between readers is where their stream is. This module does not know Redis.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Protocol

from litestar.types import Receive, Send

from samovar.errors import Cancelled, SamovarError
from samovar_dispatch.ask import Ask
from samovar_gateway import problems
from samovar_gateway.events import encoding, places
from samovar_gateway.events.answer import EventResponse
from samovar_gateway.events.resumable import Told
from samovar_gateway.events.source import Source
from samovar_gateway.state import GatewayState
from samovar_storage.ending import end_tasks


class AnyReader(Protocol):
    """Whoever reads a stream, here or from afar; see `resumable.Reader`."""

    @property
    def headers(self) -> problems.Headers: ...
    @property
    def keep_s(self) -> float: ...
    def next(self, timeout_s: float) -> Awaitable[Told | None]: ...
    def whereabouts(self) -> str: ...
    def cancel(self) -> None: ...
    def close(self, *, is_told: bool = False) -> None: ...


class Resuming:
    """One per gateway."""

    def __init__(self, state: GatewayState) -> None:
        self._state = state

    async def begin(self, ask: Ask, body: bytes, receive: Receive, send: Send) -> None:
        """Run the invocation and tell of it; it outlives the connection once the client knows a position.

        Raises: SamovarError while nothing was sent; Cancelled when the caller left.
        """
        keep_s = places.resume_s(ask.header[places.RESUME])
        streams, response = self._state.streams, EventResponse(send)
        reader = streams.begin(Source(self._state, ask), body, keep_s)
        try:
            await self._answer(reader, reader.stream.prefix, 0, response, receive, ask.request_id)
        finally:
            if not response.is_open:  # nobody knows what to come back to
                streams.end(reader.stream)

    async def resume(self, ask: Ask, receive: Receive, send: Send) -> None:
        """Go on telling of a stream of this key and function, here or at another gateway; or end it, if asked to.

        Raises: RequestError, StreamNotFound, StreamGone, StoreUnavailable while nothing was sent; Cancelled.
        """
        place = places.place_of(ask.header[places.LAST_EVENT_ID])
        function = ask.entry.record.name
        if places.is_farewell(ask.header):
            await self._give_up(place, ask.key_id, function)
            await EventResponse(send).say_nothing([(b"x-request-id", ask.request_id)])
            return
        if place.gateway == self._state.streams.gateway:
            reader: AnyReader = self._state.streams.resume(place.stream, place.number, ask.key_id, function)
        else:
            reader = await self._state.borrower.borrow(place, ask.key_id, function)
        prefix = places.prefix(place.gateway, place.stream)
        await self._answer(reader, prefix, place.number, EventResponse(send), receive, ask.request_id)

    async def _give_up(self, place: places.Place, key_id: str, function: str) -> None:
        """The call of a stream ends, if it has not. Raises: as `resume`."""
        if place.gateway == self._state.streams.gateway:
            self._state.streams.end(self._state.streams.find(place.stream, key_id, function))
        else:
            await self._state.borrower.give_up(place, key_id, function)

    async def _answer(
        self,
        reader: AnyReader,
        prefix: bytes,
        number: int,
        response: EventResponse,
        receive: Receive,
        request_id: bytes,
    ) -> None:
        """Tell what the reader reads; what it fails with after something was sent is an event of this answer alone."""
        watching = asyncio.create_task(_watch(reader, receive))
        try:
            await self._tell(reader, response, encoding.id_alone(number, prefix))
        except SamovarError as error:
            if not response.is_open:
                raise
            self._state.problems[error.code] += 1
            problem = problems.encode(error, request_id.decode("latin-1"))
            await response.write(encoding.event_without_id("error", problem))
        except Cancelled:
            return
        finally:
            reader.close()
            await end_tasks([watching])

    async def _tell(self, reader: AnyReader, response: EventResponse, opening: bytes) -> None:
        """Write events up to the end; a stream that ended with an error is left open, so that the server cuts it.

        A client that had the end before gets 204, which keeps an EventSource from coming again.
        """
        while True:
            told = await reader.next(response.patience_s)
            if told is not None and not told.data:
                reader.close(is_told=True)
                await response.say_nothing(reader.headers)
                return
            data = told.data if told is not None else encoding.comment(reader.whereabouts())
            if not response.is_open:
                await response.open([*reader.headers, (places.RESUME, b"%g" % reader.keep_s)])
                data = opening + data
            await response.write(data)
            if told is not None and told.ends:
                reader.close(is_told=True)
                if told.ends == "done":
                    await response.end()
                return


async def _watch(reader: AnyReader, receive: Receive) -> None:
    """Have the reader leave as soon as its connection is gone.

    The sweeper may take 0.1 s: what a fast generator said meanwhile would count as told, and push out what was not.
    """
    while (await receive())["type"] != "http.disconnect":
        pass
    reader.cancel()
