"""Our errors as gRPC tells them: one table from ours to its status codes, and what goes along as trailing metadata.

    samovar-code · retry-after (s) · grpc-retry-pushback-ms (clients with a retry policy obey it) · x-request-id

An error that has no row has its parent's. This module does not know where an error came from. Pure.
"""

from __future__ import annotations

import math

from grpc import StatusCode

from samovar.errors import (
    BodyTooLarge,
    ClientTooSlow,
    Conflict,
    ConnectError,
    DeadlineExceeded,
    DeployRefused,
    Forbidden,
    FunctionError,
    HeadTooLarge,
    IdempotencyReused,
    IdempotencyRunning,
    InstanceLost,
    InvalidInput,
    JobEnded,
    MethodNotAllowed,
    NotFound,
    NotUnique,
    ProtocolError,
    RateLimited,
    RequestError,
    SamovarError,
    StreamGone,
    Unauthenticated,
    Unavailable,
    UnsupportedEncoding,
    WebhookRefused,
)

Metadata = tuple[tuple[str, str], ...]

MAX_DETAILS_BYTES = (
    4096  # as written in trailers: clients drop a call whose trailers are larger than 8 KiB, status and all
)

STATUSES: dict[type[SamovarError], StatusCode] = {
    SamovarError: StatusCode.INTERNAL,
    RequestError: StatusCode.INVALID_ARGUMENT,
    Unauthenticated: StatusCode.UNAUTHENTICATED,
    Forbidden: StatusCode.PERMISSION_DENIED,
    NotFound: StatusCode.NOT_FOUND,
    StreamGone: StatusCode.NOT_FOUND,
    MethodNotAllowed: StatusCode.UNIMPLEMENTED,
    ClientTooSlow: StatusCode.DEADLINE_EXCEEDED,
    Conflict: StatusCode.FAILED_PRECONDITION,
    JobEnded: StatusCode.FAILED_PRECONDITION,
    NotUnique: StatusCode.ALREADY_EXISTS,
    IdempotencyRunning: StatusCode.ABORTED,
    IdempotencyReused: StatusCode.INVALID_ARGUMENT,
    InvalidInput: StatusCode.INVALID_ARGUMENT,
    DeployRefused: StatusCode.INVALID_ARGUMENT,
    WebhookRefused: StatusCode.INVALID_ARGUMENT,
    BodyTooLarge: StatusCode.RESOURCE_EXHAUSTED,
    HeadTooLarge: StatusCode.RESOURCE_EXHAUSTED,
    UnsupportedEncoding: StatusCode.UNIMPLEMENTED,
    FunctionError: StatusCode.UNKNOWN,  # what gRPC says of code that raised; INTERNAL is this platform's own fault
    InstanceLost: StatusCode.ABORTED,  # it ran: a client that tries UNAVAILABLE again by itself must not
    ProtocolError: StatusCode.INTERNAL,
    RateLimited: StatusCode.RESOURCE_EXHAUSTED,
    Unavailable: StatusCode.UNAVAILABLE,
    ConnectError: StatusCode.UNAVAILABLE,
    DeadlineExceeded: StatusCode.DEADLINE_EXCEEDED,
}


def status_of(error: SamovarError) -> StatusCode:
    """Return the status code of an error."""
    return next(STATUSES[cls] for cls in type(error).__mro__ if cls in STATUSES)


def details_of(error: SamovarError) -> str:
    """Return what is said of an error, cut to MAX_DETAILS_BYTES as gRPC writes it: three for each byte beyond ASCII."""
    num_bytes = 0
    for place, char in enumerate(error.detail):
        num_bytes += 1 if " " <= char <= "~" and char != "%" else 3 * len(char.encode(errors="replace"))
        if num_bytes > MAX_DETAILS_BYTES:
            return error.detail[: place - 1] + "…"
    return error.detail


def metadata_of(error: SamovarError, request_id: str) -> Metadata:
    """Return what is told beside status and details."""
    found = [("samovar-code", error.code), ("x-request-id", request_id)]
    again_s = error.retry_after_s
    if again_s is None and isinstance(error, Unavailable):
        again_s = 1.0
    if again_s is not None:
        found.append(("retry-after", str(max(1, math.ceil(again_s)))))
        found.append(("grpc-retry-pushback-ms", str(max(0, math.ceil(again_s * 1e3)))))
    return tuple(found)
