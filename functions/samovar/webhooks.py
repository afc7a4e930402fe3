"""Signatures of webhooks as Standard Webhooks (standardwebhooks.com) has them: the platform signs, you verify.

    import samovar.webhooks
    event = samovar.webhooks.verify(body, headers, "whsec_…")

Each delivery carries `webhook-id` (the same at every attempt: what was seen is a repetition), `webhook-timestamp` (unix
seconds of this attempt) and `webhook-signature`: one `v1,<base64>` for each secret in force, separated by spaces. Only
the standard library is used, so this one file can be copied to where samovar is not installed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

PREFIX = "whsec_"
TOLERANCE_S = 300.0


class BadSignature(ValueError):
    """The request is not from whom it should be, or it is too old: answer 400 and do nothing."""


def sign(secrets: Sequence[str], event_id: str, timestamp_s: int, body: bytes) -> dict[str, str]:
    """Return the headers of a delivery: HMAC-SHA-256 of `id.timestamp.body`, by each of the secrets.

    Args:
        secrets: `whsec_<base64>`, the one in force first. timestamp_s: unix seconds.
    """
    text = b".".join((event_id.encode(), str(timestamp_s).encode(), body))
    digests = (hmac.digest(_key(secret), text, hashlib.sha256) for secret in secrets)
    return {
        "webhook-id": event_id,
        "webhook-timestamp": str(timestamp_s),
        "webhook-signature": " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests),
    }


def verify(body: bytes, headers: Mapping[str, str], secret: str, tolerance_s: float = TOLERANCE_S) -> dict[str, Any]:
    """Return the event of a webhook request that was signed with `secret` lately.

    Args:
        body: as it came, byte for byte. headers: their names in any case.
        secret: `whsec_…`, see `GET /v1/webhooks/secret`. tolerance_s: how old or young it may be by this clock, > 0.
    Raises: BadSignature.
    """
    given = {name.lower(): value for name, value in headers.items()}
    try:
        event_id, timestamp = given["webhook-id"], given["webhook-timestamp"]
        signatures = given["webhook-signature"].split(" ")
    except KeyError as error:
        raise BadSignature(f"the header {error} is missing") from None
    if not timestamp.isascii() or not timestamp.isdecimal() or abs(time.time() - int(timestamp)) > tolerance_s:
        raise BadSignature("the timestamp is too far from now")
    expected = sign([secret], event_id, int(timestamp), body)["webhook-signature"].encode()
    if not any(hmac.compare_digest(expected, signature.encode()) for signature in signatures):
        raise BadSignature("no signature matches")
    event: dict[str, Any] = json.loads(body)
    return event


def _key(secret: str) -> bytes:
    try:
        return base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except binascii.Error:
        raise ValueError("a webhook secret has the form whsec_<base64>") from None
