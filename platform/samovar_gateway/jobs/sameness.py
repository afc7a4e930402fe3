"""What an `Idempotency-Key` header names, what makes two requests the same, and which answers are given again.

Pure; this module does not know where answers are kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec

from samovar.errors import FunctionError, LoadFailed, RequestError, SamovarError
from samovar_storage.jobs.idempotency import Kept

HEADER = b"idempotency-key"
REPLAYED = (b"idempotency-replayed", b"true")
MAX_KEY_BYTES = 255
NEVER_KEPT = frozenset({401, 403, 408, 409, 429, 499})
OWN_HEADERS = frozenset({b"content-length", b"x-request-id", b"server-timing", b"connection", b"date"})


def replayed(kept: Kept) -> Kept:
    """Return an answer marked as one that was given before."""
    return msgspec.structs.replace(kept, headers=[*kept.headers, REPLAYED])


def is_kept(status: int) -> bool:
    """Return whether an answer with this status is given again. 500 is only asked about for a function's own errors."""
    return 200 <= status < 300 or (400 <= status < 500 and status not in NEVER_KEPT) or status == 500


def is_kept_error(error: SamovarError) -> bool:
    """Return whether an error is given again: one that the request or the function is to blame for."""
    if error.status >= 500:
        return isinstance(error, FunctionError) and not isinstance(error, LoadFailed)
    return is_kept(error.status)


def key_of(header: bytes) -> bytes:
    """Return the key that an `Idempotency-Key` header names, bare or as a quoted string (RFC 9651).

    Raises: RequestError.
    """
    text = header.strip()
    if text.startswith(b'"'):
        text = _unquoted(text)
    is_plain = all(0x20 <= byte < 0x7F for byte in text)
    if not text or not is_plain or len(text) > MAX_KEY_BYTES:
        raise RequestError(f"an Idempotency-Key has 1 to {MAX_KEY_BYTES} printable ASCII characters")
    return text


def _unquoted(text: bytes) -> bytes:
    found, inner = bytearray(), iter(text[1:])
    for byte in inner:
        if byte == ord('"'):
            if next(inner, None) is not None:
                break
            return bytes(found)
        if byte == ord("\\"):
            byte = next(inner, 0)
            if byte not in b'"\\':
                break
        found.append(byte)
    raise RequestError('an Idempotency-Key that begins with " is a quoted string, as in RFC 9651')


def fingerprint(*parts: bytes) -> str:
    """Return what tells one request from another that comes with the same key."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return digest.hexdigest()


def kept_headers(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return those headers of an answer that are its own, not its delivery's."""
    return [(name, value) for name, value in headers if name not in OWN_HEADERS]


def print_of(header: Mapping[bytes, bytes], body: bytes, *more: bytes) -> str:
    """Return the fingerprint of a request: its content type, its body and `more`."""
    return fingerprint(header.get(b"content-type", b"application/json").strip().lower(), body, *more)
