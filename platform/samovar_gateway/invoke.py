"""`POST /v1/functions/{name}/invoke`: bytes in, bytes out. Every line here is on the hot path.

    headers → key → function → deadline → body → dispatcher → answer

What can be known before a call is known before it: principals by raw header, versions by name, labels by version.
Nothing is logged per call and no task is made per call; slow bodies and callers who left are the sweeper's business.
This module does not know instances, Redis or JSON.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from secrets import token_hex

from litestar.types import HTTPScope, Receive, Send

from samovar.errors import (
    Cancelled,
    Draining,
    FunctionNotFound,
    MethodNotAllowed,
    RequestError,
    SamovarError,
)
from samovar.wire import Result
from samovar_dispatch.call import Call
from samovar_dispatch.stream import ChunkStream
from samovar_gateway import problems
from samovar_gateway.body import BodyReader, discard
from samovar_gateway.state import GatewayState
from samovar_gateway.streaming import answer_stream
from samovar_gateway.sweep import Sweeper
from samovar_gateway.timing import server_timing

log = logging.getLogger(__name__)

MAX_REQUEST_ID_BYTES = 128
JSON_TYPE = b"application/json"
UNREAD_STATUSES = (408, 413)


class InvokeRoute:
    """The ASGI handler of the invoke route."""

    def __init__(self, state: GatewayState, sweeper: Sweeper) -> None:
        settings = state.settings
        self._state = state
        self._waiting = sweeper.waiting
        self._body = BodyReader(sweeper, settings.max_body_bytes, settings.body_timeout_s)
        self._max_timeout_s = settings.max_timeout_s
        self._id_prefix = token_hex(5).encode()
        self._num_ids = 0

    async def __call__(self, name: str, scope: HTTPScope, receive: Receive, send: Send) -> None:
        """Answer one invocation of function `name`; every error becomes a problem document."""
        header = dict(scope["headers"])
        request_id = header.get(b"x-request-id")
        if request_id is None or len(request_id) > MAX_REQUEST_ID_BYTES:
            self._num_ids += 1
            request_id = b"%s%06x" % (self._id_prefix, self._num_ids)
        try:
            call = await self._admit(name, scope, header, receive, request_id)
            self._waiting[call] = receive
            try:
                outcome = await call.future
            except asyncio.CancelledError:
                self._state.dispatcher.cancel(call)
                raise
            finally:
                self._waiting.pop(call, None)
            if type(outcome) is Result:
                await _answer(call, outcome, request_id, send)
            elif isinstance(outcome, SamovarError):
                await _refuse(outcome, request_id, send)
            elif isinstance(outcome, ChunkStream):
                await self._stream(call, outcome, request_id, receive, send)
        except SamovarError as error:
            await _refuse(error, request_id, send, receive if error.status in UNREAD_STATUSES else None)
        except Cancelled:
            return
        except Exception:
            log.exception("invocation %s of %s failed", request_id.decode("latin-1"), name)
            await _refuse(SamovarError("an error inside the gateway; its log says more"), request_id, send)

    async def _admit(
        self, name: str, scope: HTTPScope, header: dict[bytes, bytes], receive: Receive, request_id: bytes
    ) -> Call:
        """Check all that can be checked without the instance, read the body, hand the call to the dispatcher."""
        state = self._state
        principal = state.keys.authenticate(header.get(b"authorization"))
        if not principal.may_invoke or principal.functions is not None:
            principal.require("invoke", name)
        entry = state.functions.entries.get(name)
        if entry is None:
            raise await _unknown(state, name)
        if scope["method"] != "POST":
            raise MethodNotAllowed("an invocation is a POST", allow=["POST"])
        if state.draining:
            raise Draining("this gateway is shutting down", retry_after_s=1.0)
        version = entry.only or entry.choose(random.random())  # noqa: S311  shares of traffic are no secret
        asked = header.get(b"samovar-timeout-ms")
        timeout_s = version.manifest.limits.timeout_s if asked is None else min(_seconds(asked), self._max_timeout_s)
        now_s = time.monotonic()
        body = await self._body.read(header.get(b"content-length"), receive, now_s)
        return state.dispatcher.submit(
            version,
            body,
            now_s + timeout_s,
            now_s,
            header.get(b"content-type", JSON_TYPE).decode("latin-1"),
            request_id.decode("latin-1"),
            header.get(b"traceparent", b"").decode("latin-1"),
            True,
        )

    async def _stream(self, call: Call, stream: ChunkStream, request_id: bytes, receive: Receive, send: Send) -> None:
        """Send a generator's answer; the sweeper sees the caller leave as it does while a call waits."""
        self._waiting[call] = receive
        try:
            await answer_stream(call, stream, request_id, send)
        finally:
            self._waiting.pop(call, None)
            self._state.dispatcher.cancel(call)


async def _answer(call: Call, result: Result, request_id: bytes, send: Send) -> None:
    body = result.body
    headers = [
        (b"content-type", result.content_type.encode("latin-1")),
        (b"content-length", b"%d" % len(body)),
        (b"samovar-version", call.version.label),
        (b"x-request-id", request_id),
        (b"server-timing", server_timing(call, result.wait_us, result.run_us)),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def _refuse(error: SamovarError, request_id: bytes, send: Send, unread: Receive | None = None) -> None:
    """Send a problem document. unread: given when much of the body may still come; then the connection closes."""
    body = problems.encode(error, request_id.decode("latin-1"))
    headers = [*problems.headers(error), (b"content-length", b"%d" % len(body)), (b"x-request-id", request_id)]
    if unread is not None or isinstance(error, Draining):
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": unread is not None})
    if unread is not None:
        await discard(unread)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _unknown(state: GatewayState, name: str) -> FunctionNotFound:
    near = await asyncio.to_thread(state.functions.near, name)
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
    return FunctionNotFound(f"there is no function named {name!r}{hint}", near=near)


def _seconds(timeout_ms: bytes) -> float:
    try:
        value = float(timeout_ms)
    except ValueError:
        value = 0.0
    if not 0.0 < value < float("inf"):
        raise RequestError("Samovar-Timeout-Ms must be a number of milliseconds above 0")
    return value / 1e3
