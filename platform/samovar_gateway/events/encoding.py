"""Server-sent events as bytes. Pure. Source: HTML Living Standard, section 9.2.

Data is one line, or one `data:` each where the JSON of a function has several: clients put them together again.
"""

from __future__ import annotations

from base64 import b64encode

import msgspec

JSON = "application/json"


def event(number: int, kind: str, data: bytes) -> bytes:
    """Return one event. data: JSON. number: its id."""
    lines = b"\ndata: ".join(data.splitlines()) if b"\n" in data or b"\r" in data else data
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (number, kind.encode(), lines)


def comment(text: str) -> bytes:
    """Return a line that clients skip. text: one line."""
    return b": %s\n\n" % text.encode()


def as_json(content_type: str, body: bytes) -> bytes:
    """Return an answer as the data of an event: JSON as it is, else `{"content_type", "base64"}`."""
    if content_type.partition(";")[0].strip().lower() == JSON:
        return body
    return msgspec.json.encode({"content_type": content_type, "base64": b64encode(body).decode()})
