"""What is decided about an invocation before its body counts, and what every answer says beside its body.

What can be known before a call is known before it: principals by raw header, versions by name, labels by version.
Every line here is on the hot path, of ASGI's and of the fast one. This module does not know sockets or ASGI.
"""

from __future__ import annotations

import time
from secrets import token_hex

from samovar.errors import (
    Draining,
    MethodNotAllowed,
    RequestError,
    SamovarError,
    UnsupportedEncoding,
)
from samovar.wire import Result
from samovar_dispatch.ask import NATIVE, PRIORITIES, Ask
from samovar_dispatch.call import Call
from samovar_gateway import problems
from samovar_gateway.state import GatewayState
from samovar_gateway.timing import server_timing

MAX_REQUEST_ID_BYTES = 128
CLOSE = (b"connection", b"close")


class Admission:
    """What can be said about a call from its path and headers alone. max_connections: see `bounds`."""

    def __init__(self, state: GatewayState, max_connections: int) -> None:
        self.max_connections = max_connections
        self.max_body_bytes = state.settings.max_body_bytes
        self.body_timeout_s = state.settings.body_timeout_s
        self._state = state
        self._max_timeout_s = state.settings.max_timeout_s
        self._id_prefix = token_hex(5).encode()
        self._num_ids = 0

    def check(
        self, name: str, method: str, header: dict[bytes, bytes], request_id: bytes, protocol: str = NATIVE
    ) -> Ask:
        """Return the invocation that path and headers ask for; its deadline runs from now.

        request_id: what its answer and its record are called, whatever becomes of it. protocol: by which it came.
        Raises: Unauthenticated, Forbidden, FunctionNotFound (without near names), Conflict (what is stored of it cannot
            be used); noted: MethodNotAllowed, Draining, RequestError.
        """
        state = self._state
        principal = state.keys.authenticate(header.get(b"authorization"))
        if not principal.may_invoke or principal.functions is not None:
            principal.require("invoke", name)
        entry = state.functions.entries.get(name)
        if entry is None:
            raise state.functions.missing(name, [])
        now_s = time.monotonic()
        ask = Ask(
            entry,
            principal.key_id,
            now_s,
            now_s + min(entry.timeout_s, self._max_timeout_s),
            header,
            request_id,
            protocol=protocol,
        )
        ask.rate = principal.rate
        try:
            self._consider(ask, method, header)
        except SamovarError as error:
            raise state.journey.refuse(ask, error) from None
        if ask.priority < principal.max_priority:
            ask.priority = principal.max_priority
        return ask

    def _consider(self, ask: Ask, method: str, header: dict[bytes, bytes]) -> None:
        """Read what the caller asks for beside the body, or refuse it."""
        if method != "POST":
            raise MethodNotAllowed("an invocation is a POST", allow=["POST"])
        if self._state.draining:
            raise Draining("this gateway is shutting down", retry_after_s=1.0)
        get = header.get
        if (asked := get(b"samovar-timeout-ms")) is not None:
            ask.deadline_s = ask.arrived_s + min(_seconds(asked), self._max_timeout_s)
        if (asked := get(b"samovar-priority")) is not None:
            ask.priority = _priority(asked)
        if (asked := get(b"content-encoding")) is not None and asked.lower() != b"identity":
            raise UnsupportedEncoding("send the body as it is: compressed bodies are not taken")
        if (asked := get(b"content-type")) is not None:
            ask.content_type = asked.decode("latin-1")
        if (asked := get(b"traceparent")) is not None:
            ask.traceparent = asked.decode("latin-1")
        if (asked := get(b"cache-control")) is not None:
            ask.no_store = b"no-store" in asked.lower()

    def refusal(self, error: SamovarError, request_id: bytes) -> tuple[problems.Headers, bytes]:
        """Return headers and body of a problem document, and count it."""
        self._state.problems[error.code] += 1
        body = problems.encode(error, request_id.decode("latin-1"))
        return [*problems.headers(error), (b"content-length", b"%d" % len(body)), (b"x-request-id", request_id)], body

    def request_id(self, header: dict[bytes, bytes]) -> bytes:
        """Return the caller's id of this request, or one of ours."""
        given = header.get(b"x-request-id")
        if given is not None and len(given) <= MAX_REQUEST_ID_BYTES:
            return given
        self._num_ids += 1
        return b"%s%06x" % (self._id_prefix, self._num_ids)


def answer_headers(ask: Ask, call: Call | None, result: Result) -> problems.Headers:
    """Return the headers of an answer. call: that gave it, None if it came from elsewhere."""
    headers = [
        (b"content-type", result.content_type.encode("latin-1")),
        (b"content-length", b"%d" % len(result.body)),
        (b"x-request-id", ask.request_id),
    ]
    if call is not None:
        headers += (
            (b"samovar-version", call.version.label),
            (b"server-timing", server_timing(call, result.wait_us, result.run_us)),
        )
    headers += ask.more_headers
    return headers


def _priority(asked: bytes) -> int:
    priority = PRIORITIES.get(asked.lower())
    if priority is None:
        raise RequestError("Samovar-Priority is high, normal or low")
    return priority


def _seconds(timeout_ms: bytes) -> float:
    try:
        value = float(timeout_ms)
    except ValueError:
        value = 0.0
    if not 0.0 < value < float("inf"):
        raise RequestError("Samovar-Timeout-Ms must be a number of milliseconds above 0")
    return value / 1e3
