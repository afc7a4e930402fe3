"""`POST /v1/chat/completions` and `POST /v1/completions`: what a function that generates yields, whole or as it comes.

    fields ─► inputs ─► asks ─► pieces ─┬► answer, collected within MAX_WHOLE_BYTES
                                        └► data: chunk … data: [DONE]
                                              ├─ refused or failed before anything was sent: its own status
                                              ├─ OPENING_AFTER_S of silence: 200 and a comment, then heartbeats
                                              └─ failed later: data: {"error": …}, and the connection is closed

Whoever leaves has every ask cancelled. This module does not know what is in requests and answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from samovar.errors import BadOutput, SamovarError
from samovar.tasks import PARTS
from samovar_dispatch.ask import Ask
from samovar_gateway import problems as native_problems
from samovar_gateway.calling import abandon, apart
from samovar_gateway.events import encoding
from samovar_gateway.events.answer import EventResponse
from samovar_gateway.events.source import whereabouts
from samovar_gateway.openai import problems
from samovar_gateway.openai.answers import Answer, Shape, item_of
from samovar_gateway.openai.exchange import Exchange, parts_of
from samovar_gateway.openai.pieces import Pieces
from samovar_gateway.openai.requests import Asked
from samovar_gateway.timing import server_timing

MAX_WHOLE_BYTES = 32 << 20
DONE = b"data: [DONE]\n\n"


class Generation:
    """One of the two routes. shape: its answers. read: its requests; told what kinds of parts the function takes."""

    def __init__(self, shape: Shape, read: Callable[[Mapping[str, Any], frozenset[str]], Asked]) -> None:
        self._shape = shape
        self._read = read

    async def __call__(self, exchange: Exchange) -> None:
        """Answer one request. Raises: SamovarError while nothing was sent; Cancelled if the client left."""
        ask, found = await exchange.ask(PARTS)
        asked = await exchange.noted(ask, self._read, found, PARTS[ask.entry.main.manifest.task])
        exchange.names = asked.names
        bodies = await exchange.noted(ask, asked.bodies)
        asks = parts_of(ask, len(asked.inputs))
        answer = Answer(
            self._shape,
            exchange.request_id.decode("latin-1"),
            ask.entry.record.name,
            int(time.time()),
            len(asks),
            asked.n,
            with_usage=asked.with_usage,
        )
        with exchange.caller.watching_all(asks, exchange.receive):
            try:
                pieces = Pieces(exchange.state.journey, asks)
                pieces.begin(bodies)
                if asked.is_stream:
                    await Streamed(exchange, asks, pieces, answer, asked.with_usage).run()
                else:
                    await _answer_whole(exchange, asks, pieces, answer)
            finally:
                for one in asks:
                    abandon(one)


async def _answer_whole(exchange: Exchange, asks: Sequence[Ask], pieces: Pieces, answer: Answer) -> None:
    """Collect everything, and send it. Raises: what the asks fail with; BadOutput if it is too much."""
    num_bytes = 0
    while not pieces.is_over:
        piece = pieces.take()
        if piece is None:
            if not pieces.is_over:
                await pieces.wait()
            continue
        place, chunk = piece
        num_bytes += len(chunk)
        if num_bytes > MAX_WHOLE_BYTES:
            raise BadOutput(f"the answer is larger than {MAX_WHOLE_BYTES >> 20} MiB: ask for it with stream=true")
        answer.collect(place, item_of(chunk))
    body = await apart(num_bytes, answer.all, _fingerprint(asks, pieces, 0))
    await exchange.respond(200, [problems.JSON, *_headers(asks, pieces), *_timing(pieces)], body)


class Streamed:
    """One answer as it comes; to be run once."""

    def __init__(
        self, exchange: Exchange, asks: Sequence[Ask], pieces: Pieces, answer: Answer, with_usage: bool
    ) -> None:
        self._exchange = exchange
        self._asks = asks
        self._pieces = pieces
        self._answer = answer
        self._with_usage = with_usage
        self._response = EventResponse(exchange.send)

    async def run(self) -> None:
        """Send it all. Raises: SamovarError while nothing was sent; Cancelled when the client left."""
        try:
            await self._tell()
        except SamovarError as error:
            if not self._response.is_open:
                raise
            self._exchange.state.problems[error.code] += 1
            await self._write(problems.encode(error, self._exchange.names))
            return  # leaving the response open makes the server close the connection
        await self._end()

    async def _tell(self) -> None:
        """Send every piece up to the clean end of all. Raises: what the asks fail with."""
        pieces = self._pieces
        while not pieces.is_over:
            piece = pieces.take()
            if piece is not None:
                place, chunk = piece
                for data in self._answer.chunks(place, item_of(chunk), _fingerprint(self._asks, pieces, place)):
                    await self._write(data)
            elif not pieces.is_over and not await pieces.wait(self._response.patience_s):
                await self._send(encoding.comment(whereabouts(self._exchange.state, self._asks[0])))

    async def _end(self) -> None:
        """Send what comes last: ends of choices, usage, the receipt as a comment, and that it is all."""
        fingerprint = _fingerprint(self._asks, self._pieces, 0)
        for data in self._answer.rest(fingerprint):
            await self._write(data)
        if self._with_usage:
            await self._write(self._answer.usage_chunk(fingerprint))
        receipt = b"".join(b": server-timing %s\n\n" % value for _, value in _timing(self._pieces))
        await self._send(receipt + DONE)
        await self._response.end()

    async def _write(self, data: bytes) -> None:
        await self._send(b"data: %s\n\n" % data)

    async def _send(self, data: bytes) -> None:
        if not self._response.is_open:
            await self._response.open(
                [(b"x-request-id", self._exchange.request_id), *_headers(self._asks, self._pieces)]
            )
        await self._response.write(data)


def _headers(asks: Sequence[Ask], pieces: Pieces) -> native_problems.Headers:
    """Return what the first answer says beside its body, as far as it is known now."""
    call = pieces.calls[0]
    version = [(b"samovar-version", call.version.label)] if call is not None else []
    return [*version, *asks[0].more_headers]


def _timing(pieces: Pieces) -> native_problems.Headers:
    """Return the receipt, of the call that took longest."""
    last = pieces.last
    return [(b"server-timing", server_timing(last[0], last[1].wait_us, last[1].run_us))] if last is not None else []


def _fingerprint(asks: Sequence[Ask], pieces: Pieces, place: int) -> str:
    """Return which version answers, or answers for itself by something kept or fixed."""
    call, version = pieces.calls[place], asks[place].version
    if call is not None:
        return call.version.ref
    return version.ref if version is not None else ""
