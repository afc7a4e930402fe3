"""`POST /v1/functions/{name}/invoke` as an ASGI handler: bytes in, bytes out, streams too.

    headers → key → function → deadline → body → dispatcher → answer
                                             ├─ it comes with an Idempotency-Key: `jobs/repeats.py`
                                             ├─ the caller takes a job for an answer: `jobs/prefer.py`
                                             └─ the caller asks for server-sent events: `events/answer.py`

`fastpath` answers the plain small calls before they get here. Nothing is logged per call and no task is made per call;
slow bodies and callers who left are the sweeper's business. This module does not know instances, Redis or JSON.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TypeAlias

from litestar.types import HTTPScope, Receive, Send

from samovar.errors import (
    Cancelled,
    FunctionNotFound,
    SamovarError,
)
from samovar.wire import Result
from samovar_dispatch.ask import Ask
from samovar_dispatch.call import Call, Outcome
from samovar_dispatch.functions import near_names, unknown_function
from samovar_dispatch.stream import ChunkStream
from samovar_gateway.admission import CLOSE, Admission, answer_headers
from samovar_gateway.body import BodyReader, discard
from samovar_gateway.events.accept import ACCEPT
from samovar_gateway.events.answer import EventAnswer, wants_events
from samovar_gateway.jobs.prefer import PREFER, Deferral, preference_of
from samovar_gateway.jobs.repeats import Repeats
from samovar_gateway.jobs.sameness import HEADER as IDEMPOTENCY_KEY
from samovar_gateway.state import GatewayState
from samovar_gateway.streaming import answer_stream
from samovar_gateway.sweep import Sweeper

log = logging.getLogger(__name__)

UNREAD_STATUSES = (408, 413, 503)  # what says them before the body is read does not read it

Answer: TypeAlias = tuple[Call | None, Outcome]


class InvokeRoute:
    """The ASGI handler of the invoke route: whatever `fastpath` leaves to it."""

    def __init__(self, state: GatewayState, admission: Admission, sweeper: Sweeper) -> None:
        settings = state.settings
        self._state = state
        self._admission = admission
        self._waiting = sweeper.waiting
        self._deferral = Deferral(state)
        self._repeats = Repeats(state, admission, self._deferral)
        self._body = BodyReader(
            sweeper, state.dispatcher.room.backlog, settings.max_body_bytes, settings.body_timeout_s
        )

    async def __call__(self, name: str, scope: HTTPScope, receive: Receive, send: Send) -> None:
        """Answer one invocation of function `name`; every error becomes a problem document."""
        header = dict(scope["headers"])
        request_id = self._admission.request_id(header)
        unread: Receive | None = receive
        try:
            ask = await self._admit(name, scope["method"], header, request_id)
            body = await self._read(ask, receive)
            unread = None
            wanted = preference_of(scope["headers"]) if PREFER in header else None
            if IDEMPOTENCY_KEY in header:
                await self._repeats.answer(ask, body, wanted, send)
                return
            if wanted is not None:
                await self._deferral.answer(ask, body, wanted, send)
                return
            if ACCEPT in header and wants_events(ask, header[ACCEPT]):
                await self._tell(ask, body, receive, send)
                return
            answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
            ask.deliver = partial(_resolve, answer)
            self._state.journey.begin(ask, body)
            call, outcome = await self._outcome(ask, answer, receive)
            if isinstance(outcome, Result):
                await _answer(ask, call, outcome, send)
            elif isinstance(outcome, SamovarError):
                await self._refuse(outcome, request_id, send)
            elif isinstance(outcome, ChunkStream) and call is not None:
                await self._stream(ask, call, outcome, receive, send)
        except FunctionNotFound:
            await self._refuse(await _unknown(self._state, name, header), request_id, send)
        except SamovarError as error:
            await self._refuse(error, request_id, send, unread if error.status in UNREAD_STATUSES else None)
        except Cancelled:
            return
        except Exception:
            log.exception("invocation %s of %s failed", request_id.decode("latin-1"), name)
            await self._refuse(SamovarError("an error inside the gateway; its log says more"), request_id, send)

    async def _admit(self, name: str, method: str, header: dict[bytes, bytes], request_id: bytes) -> Ask:
        """Check path and headers, as `Admission.check`; a function nobody told us of is looked for once."""
        try:
            return self._admission.check(name, method, header, request_id)
        except FunctionNotFound:
            if not await self._state.mirror.find(name):
                raise
            return self._admission.check(name, method, header, request_id)

    async def _read(self, ask: Ask, receive: Receive) -> bytes:
        """Return the body. Raises, noted: BodyTooLarge, ClientTooSlow, QueueFull; Cancelled if the caller left."""
        try:
            return await self._body.read(ask.header.get(b"content-length"), receive, ask.arrived_s)
        except SamovarError as error:
            raise self._state.journey.refuse(ask, error) from None

    async def _outcome(self, ask: Ask, answer: asyncio.Future[Answer], receive: Receive) -> Answer:
        """Wait for the outcome while the sweeper watches for the caller to leave."""
        self._waiting[ask] = receive
        try:
            return await answer
        except asyncio.CancelledError:
            _abandon(ask)
            raise
        finally:
            self._waiting.pop(ask, None)

    async def _stream(self, ask: Ask, call: Call, stream: ChunkStream, receive: Receive, send: Send) -> None:
        """Send a generator's answer; the sweeper sees the caller leave as it does while a call waits."""
        self._waiting[ask] = receive
        try:
            await answer_stream(ask, call, stream, send)
        finally:
            self._waiting.pop(ask, None)
            _abandon(ask)

    async def _tell(self, ask: Ask, body: bytes, receive: Receive, send: Send) -> None:
        """Answer by events, from the start: the caller hears of the waiting, too."""
        self._waiting[ask] = receive
        try:
            await EventAnswer(self._state, ask, send).run(body)
        finally:
            self._waiting.pop(ask, None)
            _abandon(ask)

    async def _refuse(self, error: SamovarError, request_id: bytes, send: Send, unread: Receive | None = None) -> None:
        """Send a problem document. unread: given when much of the body may still come; then the connection closes."""
        headers, body = self._admission.refusal(error, request_id)
        if unread is not None:
            headers.append(CLOSE)
        await send({"type": "http.response.start", "status": error.status, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": unread is not None})
        if unread is not None:
            await discard(unread)
            await send({"type": "http.response.body", "body": b"", "more_body": False})


def _resolve(answer: asyncio.Future[Answer], call: Call | None, outcome: Outcome) -> None:
    if not answer.done():
        answer.set_result((call, outcome))


def _abandon(ask: Ask) -> None:
    if ask.handle is not None:
        ask.handle.cancel()


async def _answer(ask: Ask, call: Call | None, result: Result, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": answer_headers(ask, call, result)})
    await send({"type": "http.response.body", "body": result.body, "more_body": False})


async def _unknown(state: GatewayState, name: str, header: dict[bytes, bytes]) -> FunctionNotFound:
    """Return the error with near names, of the functions that the caller's key covers."""
    principal = state.keys.authenticate(header.get(b"authorization"))
    near = await asyncio.to_thread(near_names, name, [*filter(principal.sees, state.functions.entries)])
    return unknown_function(name, near)
