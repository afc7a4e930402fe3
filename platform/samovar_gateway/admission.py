"""What is decided about an invocation before its body counts, and what every answer says beside its body.

What can be known before a call is known before it: principals by raw header, versions by name, labels by version.
Every line here is on the hot path, of ASGI's and of the fast one. This module does not know sockets or ASGI.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from secrets import token_hex

from samovar.errors import (
    Draining,
    FunctionNotFound,
    MethodNotAllowed,
    RequestError,
    SamovarError,
)
from samovar.wire import Result
from samovar_dispatch.call import Call, Outcome, Version
from samovar_gateway import problems
from samovar_gateway.state import GatewayState
from samovar_gateway.timing import server_timing

MAX_REQUEST_ID_BYTES = 128
JSON_TYPE = b"application/json"


class Admission:
    """What can be said about a call from its path and headers alone."""

    def __init__(self, state: GatewayState) -> None:
        self.max_body_bytes = state.settings.max_body_bytes
        self.body_timeout_s = state.settings.body_timeout_s
        self._state = state
        self._max_timeout_s = state.settings.max_timeout_s
        self._id_prefix = token_hex(5).encode()
        self._num_ids = 0

    def check(self, name: str, method: str, header: dict[bytes, bytes]) -> tuple[Version, float]:
        """Return the version that answers and the seconds until the call's deadline.

        Raises: Unauthenticated, Forbidden, FunctionNotFound (without near names), MethodNotAllowed, Draining,
            RequestError.
        """
        state = self._state
        principal = state.keys.authenticate(header.get(b"authorization"))
        if not principal.may_invoke or principal.functions is not None:
            principal.require("invoke", name)
        entry = state.functions.entries.get(name)
        if entry is None:
            raise FunctionNotFound(f"there is no function named {name!r}")
        if method != "POST":
            raise MethodNotAllowed("an invocation is a POST", allow=["POST"])
        if state.draining:
            raise Draining("this gateway is shutting down", retry_after_s=1.0)
        version = entry.only or entry.choose(random.random())  # noqa: S311  shares of traffic are no secret
        asked = header.get(b"samovar-timeout-ms")
        if asked is None:
            return version, version.manifest.limits.timeout_s
        return version, min(_seconds(asked), self._max_timeout_s)

    def request_id(self, header: dict[bytes, bytes]) -> bytes:
        """Return the caller's id of this request, or one of ours."""
        given = header.get(b"x-request-id")
        if given is not None and len(given) <= MAX_REQUEST_ID_BYTES:
            return given
        self._num_ids += 1
        return b"%s%06x" % (self._id_prefix, self._num_ids)

    def submit(
        self,
        version: Version,
        body: bytes,
        deadline_s: float,
        now_s: float,
        deliver: Callable[[Outcome], object],
        header: dict[bytes, bytes],
        request_id: bytes,
    ) -> Call:
        """Hand an admitted call to the dispatcher. Raises as `Dispatcher.submit` does."""
        return self._state.dispatcher.submit(
            version,
            body,
            deadline_s,
            now_s,
            deliver,
            header.get(b"content-type", JSON_TYPE).decode("latin-1"),
            request_id.decode("latin-1"),
            header.get(b"traceparent", b"").decode("latin-1"),
            True,
        )


def answer_headers(call: Call, result: Result, request_id: bytes) -> problems.Headers:
    """Return the headers of an answer."""
    return [
        (b"content-type", result.content_type.encode("latin-1")),
        (b"content-length", b"%d" % len(result.body)),
        (b"samovar-version", call.version.label),
        (b"x-request-id", request_id),
        (b"server-timing", server_timing(call, result.wait_us, result.run_us)),
    ]


def refusal_headers(error: SamovarError, body: bytes, request_id: bytes) -> problems.Headers:
    """Return the headers of a problem document. A gateway that drains closes the connection."""
    headers = [*problems.headers(error), (b"content-length", b"%d" % len(body)), (b"x-request-id", request_id)]
    return [*headers, (b"connection", b"close")] if isinstance(error, Draining) else headers


def _seconds(timeout_ms: bytes) -> float:
    try:
        value = float(timeout_ms)
    except ValueError:
        value = 0.0
    if not 0.0 < value < float("inf"):
        raise RequestError("Samovar-Timeout-Ms must be a number of milliseconds above 0")
    return value / 1e3
