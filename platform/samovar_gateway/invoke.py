"""`POST /v1/functions/{name}/invoke` as an ASGI handler: bytes in, bytes out, streams too.

    headers → key → function → deadline → body → dispatcher → answer

`fastpath` answers the plain small calls before they get here. Nothing is logged per call and no task is made per call;
slow bodies and callers who left are the sweeper's business. This module does not know instances, Redis or JSON.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial

from litestar.types import HTTPScope, Receive, Send

from samovar.errors import (
    Cancelled,
    FunctionNotFound,
    SamovarError,
)
from samovar.wire import Result
from samovar_dispatch.call import Call, Outcome
from samovar_dispatch.functions import unknown_function
from samovar_dispatch.stream import ChunkStream
from samovar_gateway import problems
from samovar_gateway.admission import Admission, answer_headers, refusal_headers
from samovar_gateway.body import BodyReader, discard
from samovar_gateway.state import GatewayState
from samovar_gateway.streaming import answer_stream
from samovar_gateway.sweep import Sweeper

log = logging.getLogger(__name__)

UNREAD_STATUSES = (408, 413)


class InvokeRoute:
    """The ASGI handler of the invoke route: whatever `fastpath` leaves to it."""

    def __init__(self, state: GatewayState, admission: Admission, sweeper: Sweeper) -> None:
        settings = state.settings
        self._state = state
        self._admission = admission
        self._waiting = sweeper.waiting
        self._body = BodyReader(sweeper, settings.max_body_bytes, settings.body_timeout_s)

    async def __call__(self, name: str, scope: HTTPScope, receive: Receive, send: Send) -> None:
        """Answer one invocation of function `name`; every error becomes a problem document."""
        header = dict(scope["headers"])
        request_id = self._admission.request_id(header)
        try:
            version, timeout_s = self._admission.check(name, scope["method"], header)
            deadline_s = (now_s := time.monotonic()) + timeout_s
            body = await self._body.read(header.get(b"content-length"), receive, now_s)
            future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
            deliver = partial(_resolve, future)
            call = self._admission.submit(version, body, deadline_s, now_s, deliver, header, request_id)
            outcome = await self._outcome(call, future, receive)
            if isinstance(outcome, Result):
                await _answer(call, outcome, request_id, send)
            elif isinstance(outcome, SamovarError):
                await _refuse(outcome, request_id, send)
            elif isinstance(outcome, ChunkStream):
                await self._stream(call, outcome, request_id, receive, send)
        except FunctionNotFound:
            await _refuse(await _unknown(self._state, name), request_id, send)
        except SamovarError as error:
            await _refuse(error, request_id, send, receive if error.status in UNREAD_STATUSES else None)
        except Cancelled:
            return
        except Exception:
            log.exception("invocation %s of %s failed", request_id.decode("latin-1"), name)
            await _refuse(SamovarError("an error inside the gateway; its log says more"), request_id, send)

    async def _outcome(self, call: Call, future: asyncio.Future[Outcome], receive: Receive) -> Outcome:
        """Wait for the outcome while the sweeper watches for the caller to leave."""
        self._waiting[call] = receive
        try:
            return await future
        except asyncio.CancelledError:
            self._state.dispatcher.cancel(call)
            raise
        finally:
            self._waiting.pop(call, None)

    async def _stream(self, call: Call, stream: ChunkStream, request_id: bytes, receive: Receive, send: Send) -> None:
        """Send a generator's answer; the sweeper sees the caller leave as it does while a call waits."""
        self._waiting[call] = receive
        try:
            await answer_stream(call, stream, request_id, send)
        finally:
            self._waiting.pop(call, None)
            self._state.dispatcher.cancel(call)


def _resolve(future: asyncio.Future[Outcome], outcome: Outcome) -> None:
    if not future.done():
        future.set_result(outcome)


async def _answer(call: Call, result: Result, request_id: bytes, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": answer_headers(call, result, request_id)})
    await send({"type": "http.response.body", "body": result.body, "more_body": False})


async def _refuse(error: SamovarError, request_id: bytes, send: Send, unread: Receive | None = None) -> None:
    """Send a problem document. unread: given when much of the body may still come; then the connection closes."""
    body = problems.encode(error, request_id.decode("latin-1"))
    headers = refusal_headers(error, body, request_id)
    if unread is not None:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": unread is not None})
    if unread is not None:
        await discard(unread)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _unknown(state: GatewayState, name: str) -> FunctionNotFound:
    near = await asyncio.to_thread(state.functions.near, name)
    return unknown_function(name, near)
