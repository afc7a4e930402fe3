"""The hot path below ASGI: a small invocation that arrived in one piece goes from the socket to the dispatcher and back
without a task, a scope or a message dictionary.

uvicorn's protocol object parses as ever. When a whole request is there after one read, and it is a plain call of a
function that answers with one value, it is admitted right here; in every other case (another route, a body that is not
all there yet, anything to refuse, a generator, a caller who asks for events) the request takes the ASGI way through
`app`, which can do everything.
So nothing is decided here that is not decided there by the same code. Measured: about half the gateway's CPU per call.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from samovar.errors import FunctionNotFound, SamovarError
from samovar.wire import Result
from samovar_dispatch.ask import Ask
from samovar_dispatch.call import Call, Outcome
from samovar_gateway import old_clients, problems
from samovar_gateway.admission import Admission, answer_headers
from samovar_gateway.bounds import BoundedProtocol
from samovar_gateway.events.accept import ACCEPT, ANYTHING, MENTION
from samovar_gateway.jobs.prefer import PREFER
from samovar_gateway.jobs.sameness import HEADER as IDEMPOTENCY_KEY

if TYPE_CHECKING:
    from samovar_dispatch.journey import Journey

log = logging.getLogger(__name__)

FUNCTIONS_PREFIX = b"/v1/functions/"
INVOKE_SUFFIX = b"/invoke"
COPY_BYTES = 64 * 1024  # an answer up to this size is copied behind its head, a larger one is written from where it is


class _Event:
    """Stands where uvicorn keeps the event that wakes an ASGI `receive`; nobody waits here."""

    def set(self) -> None:
        """Wake nobody."""


class Exchange:
    """One request on the fast path; uvicorn treats it as it does its own request-response cycles."""

    __slots__ = ("ask", "disconnected", "keep_alive", "protocol", "request_id", "response_complete")
    message_event = _Event()

    def __init__(self, protocol: InvokeProtocol, ask: Ask | None, request_id: bytes, keep_alive: bool) -> None:
        self.protocol = protocol
        self.ask = ask
        self.request_id = request_id
        self.keep_alive = keep_alive
        self.response_complete = self.disconnected = False

    def deliver(self, call: Call | None, outcome: Outcome) -> None:
        """Write the answer, which is no stream. Never raises: the dispatcher is in the middle of its work."""
        try:
            if type(outcome) is Result:
                self.respond(200, answer_headers(self.ask, call, outcome), outcome.body)  # type: ignore[arg-type]
            elif isinstance(outcome, SamovarError):
                self.refuse(outcome)
        except Exception:
            log.exception("the answer to %s could not be written", self.request_id.decode("latin-1"))
            self.protocol.transport.abort()

    def abandon(self) -> None:
        """Nobody wants the rest of this answer."""
        if self.ask is not None and self.ask.handle is not None:
            self.ask.handle.cancel()

    def refuse(self, error: SamovarError) -> None:
        """Answer with a problem document."""
        headers, body = self.protocol.admission.refusal(error, self.request_id)
        self.respond(error.status, headers, body)

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


class InvokeProtocol(BoundedProtocol):
    """uvicorn's HTTP protocol, within bounds, with the fast path in front."""

    def __init__(self, admission: Admission, journey: Journey, *args: Any, **kwargs: Any) -> None:
        super().__init__(admission, *args, **kwargs)
        self._journey = journey
        self._body: bytes | None = None  # of a candidate for the fast path; None = uvicorn's way

    def on_message_begin(self) -> None:
        """Keep what comes; the ASGI scope is only made for requests that need one."""
        self.begin_message()
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._body = None

    def on_headers_complete(self) -> None:
        """Hold back a candidate until its body is there; send everything else uvicorn's way."""
        self.check_head()
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
        self.end_message()
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
            exchange.abandon()
        super().connection_lost(exc)

    def _take_the_asgi_way(self) -> None:
        """Give uvicorn the request as if nothing had been held back."""
        url, headers, expect, body = self.url, self.headers, self.expect_100_continue, self._body
        super().on_message_begin()
        self.url, self.expect_100_continue, self._body = url, expect, None
        self.headers = self.scope["headers"] = headers
        super().on_headers_complete()
        if self.scope["http_version"] == old_clients.VERSION:
            old_clients.end_by_closing(self.cycle)
        self.cycle.keep_alive = self.cycle.keep_alive and not self.server_state.is_leaving
        if body:
            super().on_body(body)

    def _start(self, body: bytes) -> bool:
        """Hand a whole request to the dispatcher; return False, having done nothing, if it is not for the fast path."""
        name = self.url[len(FUNCTIONS_PREFIX) : -len(INVOKE_SUFFIX)]
        is_plain = self.url.startswith(FUNCTIONS_PREFIX) and name.isascii() and b"%" not in name
        if not is_plain or len(body) > self.admission.max_body_bytes or self.parser.get_http_version() != "1.1":
            return False
        header = dict(self.headers)
        if PREFER in header or IDEMPOTENCY_KEY in header:
            return False
        if (accept := header.get(ACCEPT, ANYTHING)) != ANYTHING and MENTION in accept.lower():
            return False
        request_id = self.admission.request_id(header)
        keep_alive = self.parser.should_keep_alive() and not self.server_state.is_leaving
        try:
            ask = self.admission.check(name.decode("ascii"), self.parser.get_method().decode(), header, request_id)
        except FunctionNotFound:
            return False
        except SamovarError as error:
            self._body = None
            self.cycle = refused = Exchange(self, None, request_id, keep_alive)  # type: ignore[assignment]
            refused.refuse(error)
            return True
        if ask.entry.streams:
            return False
        self._body = None
        self.cycle = exchange = Exchange(self, ask, request_id, keep_alive)  # type: ignore[assignment]
        ask.deliver = exchange.deliver
        try:
            self._journey.begin(ask, body)
        except SamovarError as error:
            exchange.refuse(error)
        return True
