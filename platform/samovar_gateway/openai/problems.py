"""Errors of ours in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`. Pure.

| status                | type                  | code
|-----------------------|-----------------------|------------------------------------------------------------------
| 401                   | invalid_request_error | invalid_api_key
| 404 of a model        | invalid_request_error | model_not_found
| 400 beyond the context| invalid_request_error | context_length_exceeded
| 400 unknown, refused  | invalid_request_error | unknown_parameter, unsupported_parameter
| 429                   | rate_limit_error      | rate_limit_exceeded
| other 4xx             | invalid_request_error | ours, such as `invalid_input`
| 5xx                   | server_error          | ours, such as `queue_full`

Statuses are ours. `x-should-retry` says what only we know: whether asking again can help; clients of OpenAI's obey it,
and wait as long as `retry-after-ms` says. This module does not know where an error came from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from samovar.errors import FunctionNotFound, RateLimited, SamovarError, Unauthenticated
from samovar_gateway import problems

Headers = problems.Headers
JSON = (b"content-type", b"application/json")
_CODES: Mapping[type[SamovarError], str] = {
    FunctionNotFound: "model_not_found",
    Unauthenticated: "invalid_api_key",
    RateLimited: "rate_limit_exceeded",
}


def document(error: SamovarError, names: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the error object. names: what the caller called fields that have another name inside."""
    param = _param(error)
    return {
        "error": {
            "message": error.detail,
            "type": _type(error.status),
            "param": (names or {}).get(param, param) if param is not None else None,
            "code": error.extra.get("reason") or _CODES.get(type(error), error.code),
        }
    }


def encode(error: SamovarError, names: Mapping[str, str] | None = None) -> bytes:
    """Return the error object as JSON."""
    return msgspec.json.encode(document(error, names), enc_hook=str)


def headers(error: SamovarError) -> Headers:
    """Return the headers that an error's status asks for, and whether and when to try again."""
    found = [header for header in problems.headers(error) if header != problems.PROBLEM_JSON]
    if error.retry_after_s is not None:
        found.append((b"retry-after-ms", b"%d" % max(1, math.ceil(error.retry_after_s * 1e3))))
    found.append((b"x-should-retry", b"true" if error.retryable else b"false"))
    return [JSON, *found]


def _type(status: int) -> str:
    if status == RateLimited.status:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"


def _param(error: SamovarError) -> str | None:
    """Return the field that is wrong: as the function named it, or where its input did not match."""
    if isinstance(error, FunctionNotFound):
        return "model"
    if "param" in error.extra:
        return str(error.extra["param"])
    path = error.extra.get("path") if error.status < 500 else None  # of an answer it is no field of the request
    return str(path).removeprefix("$").removeprefix(".") or None if path is not None else None
