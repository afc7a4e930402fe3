"""Errors as RFC 9457 problem documents: one table from ours to HTTP, used by every route.

This module does not know where an error came from.
"""

from __future__ import annotations

import math
from http import HTTPStatus
from typing import Any

import msgspec

from samovar import problems
from samovar.errors import RateLimited, SamovarError

Headers = list[tuple[bytes, bytes]]

PROBLEM_JSON = (b"content-type", b"application/problem+json")
CLIENT_CLOSED_REQUEST = 499  # never sent, only counted


def document(error: SamovarError, request_id: str) -> dict[str, Any]:
    """Return the problem document of `error`; its extra fields never replace the standard ones."""
    return {**error.extra, **problems.standard(error), "request_id": request_id}


def headers(error: SamovarError) -> Headers:
    """Return the headers an error's status asks for: Retry-After, WWW-Authenticate, RateLimit."""
    found: Headers = [PROBLEM_JSON]
    if error.retry_after_s is not None:
        found.append((b"retry-after", b"%d" % max(1, math.ceil(error.retry_after_s))))
    elif error.status == HTTPStatus.SERVICE_UNAVAILABLE:
        found.append((b"retry-after", b"1"))
    if error.status == HTTPStatus.METHOD_NOT_ALLOWED and "allow" in error.extra:
        found.append((b"allow", ", ".join(error.extra["allow"]).encode()))
    if error.status == HTTPStatus.UNAUTHORIZED:
        found.append((b"www-authenticate", b'Bearer realm="samovar"'))
    if isinstance(error, RateLimited) and "policy" in error.extra:
        found += _rate_limit(error)
    return found


def _rate_limit(error: RateLimited) -> Headers:
    """Return the headers of draft-ietf-httpapi-ratelimit-headers: the limit that refused, and when to come again."""
    limit, policy = error.extra["limit"], error.extra["policy"]
    again_s = max(1, math.ceil(error.retry_after_s or 0))
    return [
        (b"ratelimit-policy", f'"{limit}";q={policy["burst"]};w={policy["window_s"]}'.encode()),
        (b"ratelimit", f'"{limit}";r=0;t={again_s}'.encode()),
    ]


def encode(error: SamovarError, request_id: str) -> bytes:
    """Return the problem document as JSON bytes."""
    return msgspec.json.encode(document(error, request_id), enc_hook=str)
