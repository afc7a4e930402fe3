"""Whether a caller asks for server-sent events: its `Accept` header, read as RFC 9110, section 12.5.1, says. Pure.

| Accept                                      | of a generator
|---------------------------------------------|----------------
| none, `*/*`, `text/*`, what cannot be read  | the usual answer: events are sent to those who name them
| `text/event-stream`                         | events
| `text/event-stream, */*;q=0.1`              | events
| `application/x-ndjson, text/event-stream`   | events: as welcome as the other
| `application/x-ndjson, text/event-stream;q=0.5` | the usual answer
| `text/event-stream;q=0`                     | the usual answer
"""

from __future__ import annotations

ACCEPT = b"accept"
ANYTHING = b"*/*"  # what most clients send
EVENT_STREAM = "text/event-stream"
MENTION = EVENT_STREAM.encode()  # a header without it, in lower case, does not ask for events


def prefers_events(accept: str, usual: str) -> bool:
    """Return whether events are named and no less welcome than the answer otherwise given, of media type `usual`."""
    qualities = dict(map(_parse, accept.lower().split(",")))
    wanted = qualities.get(EVENT_STREAM, 0.0)
    ranges = (usual, usual.partition("/")[0] + "/*", "*/*")
    instead = next((qualities[name] for name in ranges if name in qualities), 0.0)
    return wanted > 0.0 and wanted >= instead


def _parse(element: str) -> tuple[str, float]:
    """Return media range and quality, 1 if it has none and 0 if that is no number from 0 to 1."""
    name, *parameters = (part.strip() for part in element.split(";"))
    given = next((value for key, _, value in (one.partition("=") for one in parameters) if key.strip() == "q"), "1")
    try:
        quality = float(given)
    except ValueError:
        quality = 0.0
    return name, quality if 0.0 <= quality <= 1.0 else 0.0
