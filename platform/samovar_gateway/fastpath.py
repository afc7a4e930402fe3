"""The hot path below ASGI: a small invocation that arrived in one piece goes from the socket to the dispatcher and back
without a task, a scope or a message dictionary.

uvicorn's protocol object parses as ever. When a whole request is there after one read, and it is a plain call of a
function that answers with one value, it is admitted right here; in every other case (another route, a body that is not
all there yet, anything to refuse, a generator) the request takes the ASGI way through `app`, which can do everything.
So nothing is decided here that is not decided there by the same code. Measured: about half the gateway's CPU per call.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from samovar.errors import Cancelled, ProtocolError, SamovarError
from samovar.wire import Result
from samovar_dispatch.call import Call, Outcome
from samovar_gateway import problems
from samovar_gateway.admission import Admission, answer_headers, refusal_headers

if TYPE_CHECKING:
    from samovar_dispatch.dispatcher import Dispatcher

log = logging.getLogger(__name__)

FUNCTIONS_PREFIX = b"/v1/functions/"
INVOKE_SUFFIX = b"/invoke"
TOO_SLOW = STATUS_LINE[408] + b"connection: close\r\ncontent-length: 0\r\n\r\n"
COPY_BYTES = 64 * 1024  # an answer up to this size is copied behind its head, a larger one is written from where it is
STREAMING_HANDLERS = ("generator", "async_generator")


class _Event:
    """Stands where uvicorn keeps the event that wakes an ASGI `receive`; nobody waits here."""

    def set(self) -> None:
        """Wake nobody."""


class Exchange:
    """One request on the fast path; uvicorn treats it as it does its own request-response cycles."""

    __slots__ = ("call", "disconnected", "keep_alive", "protocol", "request_id", "response_complete")
    message_event = _Event()

    def __init__(self, protocol: InvokeProtocol, request_id: bytes, keep_alive: bool) -> None:
        self.protocol = protocol
        self.request_id = request_id
        self.keep_alive = keep_alive
        self.response_complete = self.disconnected = False
        self.call: Call | None = None

    def deliver(self, outcome: Outcome) -> None:
        """Write the answer. Never raises: the dispatcher is in the middle of its work."""
        try:
            if type(outcome) is Result:
                headers = answer_headers(self.call, outcome, self.request_id)  # type: ignore[arg-type]
                self.respond(200, headers, outcome.body)
            elif isinstance(outcome, SamovarError):
                self.refuse(outcome)
            elif not isinstance(outcome, Cancelled):
                self.refuse(ProtocolError("the instance streamed the answer of a function that does not stream"))
                self.protocol.abandon(self)
        except Exception:
            log.exception("the answer to %s could not be written", self.request_id.decode("latin-1"))
            self.protocol.transport.abort()

    def refuse(self, error: SamovarError) -> None:
        """Answer with a problem document."""
        body = problems.encode(error, self.request_id.decode("latin-1"))
        self.respond(error.status, refusal_headers(error, body, self.request_id), body)

    def respond(self, status: int, headers: problems.Headers, body: bytes) -> None:
        """Write one complete response in one piece."""
        protocol = self.protocol
        self.response_complete = True
        parts = [STATUS_LINE[status]]
        for name, value in (*protocol.server_state.default_headers, *headers):
            parts += (name, b": ", value, b"\r\n")
        if not self.keep_alive:
            parts.append(b"connection: close\r\n")
        parts += (b"\r\n", body)
        if len(body) > COPY_BYTES:
            protocol.transport.writelines(parts)
        else:
            protocol.transport.write(b"".join(parts))
        if not self.keep_alive:
            protocol.transport.close()
        protocol.on_response_complete()


class InvokeProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with the fast path in front."""

    def __init__(self, admission: Admission, dispatcher: Dispatcher, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._admission = admission
        self._dispatcher = dispatcher
        self._body: bytes | None = None  # of a candidate for the fast path; None = uvicorn's way
        self._head_since_s: float | None = None  # when the head that is still coming began
        self._watch: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_since_s = time.monotonic()
        self._watch_head()

    def on_message_begin(self) -> None:
        """Keep what comes; the ASGI scope is only made for requests that need one."""
        self._head_since_s = time.monotonic()
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._body = None

    def on_headers_complete(self) -> None:
        """Hold back a candidate until its body is there; send everything else uvicorn's way."""
        self._head_since_s = None
        is_free = (self.cycle is None or self.cycle.response_complete) and not self.flow.write_paused
        if is_free and not self.expect_100_continue and self.url.endswith(INVOKE_SUFFIX):
            self._body = b""
        else:
            self._take_the_asgi_way()

    def on_body(self, body: bytes) -> None:
        if self._body is None:
            super().on_body(body)
        else:
            self._body += body

    def on_message_complete(self) -> None:
        if self._body is None:
            super().on_message_complete()
        elif not self._start(self._body):
            self._take_the_asgi_way()
            super().on_message_complete()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._body is not None and self.parser is not None and not self.transport.is_closing():
            self._take_the_asgi_way()  # the rest of the body is still to come

    def connection_lost(self, exc: Exception | None) -> None:
        exchange = self.cycle
        if isinstance(exchange, Exchange) and not exchange.response_complete:
            self.abandon(exchange)
        if self._watch is not None:
            self._watch.cancel()
        super().connection_lost(exc)

    def abandon(self, exchange: Exchange) -> None:
        """Nobody wants the rest of this answer."""
        if exchange.call is not None:
            self._dispatcher.cancel(exchange.call)

    def _watch_head(self) -> None:
        """Close a connection whose client takes too long to send a request's head: one timer, not one per request."""
        timeout_s = self._admission.body_timeout_s
        if self._head_since_s is not None and time.monotonic() - self._head_since_s > timeout_s:
            self.transport.write(TOO_SLOW)
            self.transport.close()
        else:
            self._watch = self.loop.call_later(timeout_s, self._watch_head)

    def _take_the_asgi_way(self) -> None:
        """Give uvicorn the request as if nothing had been held back."""
        url, headers, expect, body = self.url, self.headers, self.expect_100_continue, self._body
        super().on_message_begin()
        self.url, self.expect_100_continue, self._body = url, expect, None
        self.headers = self.scope["headers"] = headers
        super().on_headers_complete()
        if body:
            super().on_body(body)

    def _start(self, body: bytes) -> bool:
        """Hand a whole request to the dispatcher; return False, having done nothing, if it is not for the fast path."""
        name = self.url[len(FUNCTIONS_PREFIX) : -len(INVOKE_SUFFIX)]
        is_plain = self.url.startswith(FUNCTIONS_PREFIX) and name.isascii() and b"%" not in name
        if not is_plain or len(body) > self._admission.max_body_bytes or self.parser.get_http_version() != "1.1":
            return False
        header = dict(self.headers)
        try:
            version, timeout_s = self._admission.check(name.decode("ascii"), self.parser.get_method().decode(), header)
        except SamovarError:
            return False
        if version.manifest.handler in STREAMING_HANDLERS:
            return False
        self._body = None
        exchange = Exchange(self, self._admission.request_id(header), self.parser.should_keep_alive())
        self.cycle = exchange  # type: ignore[assignment]
        now_s = time.monotonic()
        try:
            exchange.call = self._admission.submit(
                version, body, now_s + timeout_s, now_s, exchange.deliver, header, exchange.request_id
            )
        except SamovarError as error:
            exchange.refuse(error)
        return True
