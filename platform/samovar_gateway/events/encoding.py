"""Server-sent events as bytes. Pure. Source: HTML Living Standard, section 9.2.

Data is one line, or one `data:` each where the JSON of a function has several: clients put them together again.
"""

from __future__ import annotations

from base64 import b64encode

import msgspec

JSON = "application/json"


def event(number: int, kind: str, data: bytes, prefix: bytes = b"") -> bytes:
    """Return one event. data: JSON. number: its id, behind `prefix`."""
    return b"id: %s%d\n" % (prefix, number) + event_without_id(kind, data)


def event_without_id(kind: str, data: bytes) -> bytes:
    """Return an event of this connection alone: the client's last id stays what it was."""
    lines = b"\ndata: ".join(data.splitlines()) if b"\n" in data or b"\r" in data else data
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), lines)


def id_alone(number: int, prefix: bytes) -> bytes:
    """Return what makes clients remember an id and tells them nothing."""
    return b"id: %s%d\n\n" % (prefix, number)


def comment(text: str) -> bytes:
    """Return a line that clients skip. text: one line."""
    return b": %s\n\n" % text.encode()


def as_json(content_type: str, body: bytes) -> bytes:
    """Return an answer as the data of an event: JSON as it is, else `{"content_type", "base64"}`."""
    if content_type.partition(";")[0].strip().lower() == JSON:
        return body
    return msgspec.json.encode({"content_type": content_type, "base64": b64encode(body).decode()})
