"""`POST /v1/functions/{name}/invoke` as an ASGI handler: bytes in, bytes out, streams too.

    headers → key → function → deadline → body → dispatcher → answer
                                             ├─ it comes with an Idempotency-Key: `jobs/repeats.py`
                                             ├─ the caller takes a job for an answer: `jobs/prefer.py`
                                             └─ the caller asks for server-sent events: `events/answer.py`, and to be
                                                able to come back to them: `events/resuming.py`

`fastpath` answers the plain small calls before they get here. Nothing is logged per call and no task is made per call;
slow bodies and callers who left are the sweeper's business. This module does not know instances, Redis or JSON.
"""

from __future__ import annotations

import logging

from litestar.types import HTTPScope, Receive, Send

from samovar.errors import Cancelled, SamovarError
from samovar.wire import Result
from samovar_dispatch.ask import Ask
from samovar_dispatch.call import Call
from samovar_dispatch.stream import ChunkStream
from samovar_gateway.admission import CLOSE, answer_headers
from samovar_gateway.body import discard
from samovar_gateway.calling import Caller, abandon
from samovar_gateway.events.accept import ACCEPT
from samovar_gateway.events.answer import EventAnswer, wants_events
from samovar_gateway.events.places import LAST_EVENT_ID, RESUME
from samovar_gateway.events.resuming import Resuming
from samovar_gateway.jobs.prefer import PREFER, Deferral, preference_of
from samovar_gateway.jobs.repeats import Repeats
from samovar_gateway.jobs.sameness import HEADER as IDEMPOTENCY_KEY
from samovar_gateway.streaming import answer_stream

log = logging.getLogger(__name__)

UNREAD_STATUSES = (408, 413, 503)  # what says them before the body is read does not read it


class InvokeRoute:
    """The ASGI handler of the invoke route: whatever `fastpath` leaves to it."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._state = caller.state
        self._admission = caller.admission
        self._deferral = Deferral(caller.state)
        self._resuming = Resuming(caller.state)
        self._repeats = Repeats(caller.state, caller.admission, self._deferral)

    async def __call__(self, name: str, scope: HTTPScope, receive: Receive, send: Send) -> None:
        """Answer one invocation of function `name`; every error becomes a problem document."""
        header = dict(scope["headers"])
        request_id = self._admission.request_id(header)
        unread: Receive | None = receive
        try:
            ask = await self._caller.admit(name, scope["method"], header, request_id)
            body = await self._caller.read(header, receive, ask)
            unread = None
            wanted = preference_of(scope["headers"]) if PREFER in header else None
            if IDEMPOTENCY_KEY in header:
                await self._repeats.answer(ask, body, wanted, send)
            elif wanted is not None:
                await self._deferral.answer(ask, body, wanted, send)
            elif ACCEPT in header and wants_events(ask, header[ACCEPT]):
                await self._tell(ask, body, receive, send)
            else:
                await self._plain(ask, body, receive, send)
        except SamovarError as error:
            await self._refuse(error, request_id, send, unread if error.status in UNREAD_STATUSES else None)
        except Cancelled:
            return
        except Exception:
            log.exception("invocation %s of %s failed", request_id.decode("latin-1"), name)
            await self._refuse(SamovarError("an error inside the gateway; its log says more"), request_id, send)

    async def _plain(self, ask: Ask, body: bytes, receive: Receive, send: Send) -> None:
        """Answer with the function's own bytes, or line by line if it is a generator."""
        call, outcome = await self._caller.outcome(ask, body, receive)
        if isinstance(outcome, Result):
            await _answer(ask, call, outcome, send)
        elif call is not None:
            await self._stream(ask, call, outcome, receive, send)

    async def _stream(self, ask: Ask, call: Call, stream: ChunkStream, receive: Receive, send: Send) -> None:
        """Send a generator's answer; the sweeper sees the caller leave as it does while a call waits."""
        with self._caller.watching(ask, receive):
            try:
                await answer_stream(ask, call, stream, send)
            finally:
                abandon(ask)

    async def _tell(self, ask: Ask, body: bytes, receive: Receive, send: Send) -> None:
        """Answer by events, from the start: the caller hears of the waiting, too; or from where it was."""
        if LAST_EVENT_ID in ask.header:
            await self._resuming.resume(ask, receive, send)
            return
        if RESUME in ask.header:
            await self._resuming.begin(ask, body, receive, send)
            return
        with self._caller.watching(ask, receive):
            try:
                await EventAnswer(self._state, ask, send).run(body)
            finally:
                abandon(ask)

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


async def _answer(ask: Ask, call: Call | None, result: Result, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": answer_headers(ask, call, result)})
    await send({"type": "http.response.body", "body": result.body, "more_body": False})
