"""What gateways write to each other about resumable streams: small messages, published on the addressee's channel.

    borrower ─► owner                              owner ─► borrower
    Read    give me this stream after event n      Opened   here it comes
    Got     I have up to n: send more              Telling  some events, or where the call is
    Left    nobody reads it here any more          Refused  an error instead, or instead of the rest
    Unwanted  its client wants no more of it

Published messages can be lost; that costs time alone: events carry numbers, and a borrower who misses some, or hears
nothing for long, sends `Read` again. Pure: this module does not know Redis, nor what happens to a letter.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec


class _Letter(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """reader: drawn by the borrower, one for each time a client comes back."""

    reader: str


class Read(_Letter, array_like=True, frozen=True, gc=False, tag=1):
    """reply_to: the borrower's name. number: the last event it has. key_id, function: whose stream it must be."""

    reply_to: str
    stream: str
    number: int
    key_id: str
    function: str


class Got(_Letter, array_like=True, frozen=True, gc=False, tag=2):
    """Everything up to event `number` was written to the client. Also a sign of life."""

    number: int


class Left(_Letter, array_like=True, frozen=True, gc=False, tag=3):
    """is_told: the client was told the end."""

    is_told: bool = False


class Opened(_Letter, array_like=True, frozen=True, gc=False, tag=4):
    """keep_s: how long the stream outlives a reader. headers: that the answer has because of its call."""

    keep_s: float
    headers: list[tuple[bytes, bytes]]


class Telling(_Letter, array_like=True, frozen=True, gc=False, tag=5):
    """events: numbers and bytes, in order. last: number of the newest that was sent. ends: "done" or "error" if that
    is the end. whereabouts: where the call is, now."""

    events: list[tuple[int, bytes]]
    last: int
    ends: str
    whereabouts: str


class Refused(_Letter, array_like=True, frozen=True, gc=False, tag=6):
    """The members of an error of ours."""

    code: str
    status: int
    detail: str
    extra: dict[str, Any]


class Unwanted(_Letter, array_like=True, frozen=True, gc=False, tag=7):
    """The client that has the stream gives it up; fields as of `Read`."""

    stream: str
    key_id: str
    function: str


Letter: TypeAlias = Read | Got | Left | Opened | Telling | Refused | Unwanted
_decoder: msgspec.msgpack.Decoder[Letter] = msgspec.msgpack.Decoder(Letter)


def encode(letter: Letter) -> bytes:
    """Return the bytes to be published."""
    return msgspec.msgpack.encode(letter)


def decode(data: bytes) -> Letter | None:
    """Return the letter, None for what is none (a gateway of another release)."""
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError:
        return None
