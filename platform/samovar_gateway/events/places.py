"""Where in which stream a client is: what the ids of a resumable stream's events say, and its headers. Pure.

    9f86d081-60303ae22b998861-17
    │        │                └─ the 17th event; 0 = nothing yet
    │        └─ the stream: nobody can guess it, and the key must be the one that began it
    └─ the gateway process that has it

Events of other streams have plain numbers for ids. This module does not know streams.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from samovar.errors import RequestError

RESUME = b"samovar-resume"
LAST_EVENT_ID = b"last-event-id"
MAX_RESUME_S = 60.0
GATEWAY_BYTES, STREAM_BYTES = 4, 8  # of chance in each, twice as many digits

_PLACE = re.compile(rb"([0-9a-f]{8})-([0-9a-f]{16})-(0|[1-9][0-9]{0,14})")


class Place(NamedTuple):
    """gateway, stream: as drawn. number: of the last event that the client has."""

    gateway: str
    stream: str
    number: int


def prefix(gateway: str, stream: str) -> bytes:
    """Return what stands in front of the number in the ids of a stream."""
    return f"{gateway}-{stream}-".encode()


def place_of(last_event_id: bytes) -> Place:
    """Return where a client wants to go on. Raises: RequestError if no resumable stream gives such ids."""
    found = _PLACE.fullmatch(last_event_id.strip())
    if found is None:
        raise RequestError(
            "this stream cannot be resumed: its call ended with its connection. Begin one with the header "
            "Samovar-Resume: 60, or leave Last-Event-ID away to run the function again"
        )
    gateway, stream, number = found.groups()
    return Place(gateway.decode(), stream.decode(), int(number))


def is_farewell(header: dict[bytes, bytes]) -> bool:
    """Return whether a client gives up a stream instead of going on with it: `Samovar-Resume: 0`."""
    return header.get(RESUME) == b"0"


def resume_s(asked: bytes) -> float:
    """Return how many seconds a stream outlives its connection, as `Samovar-Resume` says. Raises: RequestError."""
    try:
        seconds = float(asked)
    except ValueError:
        seconds = 0.0
    if not 1.0 <= seconds <= MAX_RESUME_S:
        raise RequestError(f"Samovar-Resume is a number of seconds from 1 to {MAX_RESUME_S:g}")
    return seconds
