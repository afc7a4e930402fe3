"""One record of the request log as it travels: packed in *frames*, each with the rows of one gateway and one function.

A frame is what goes into the spool and into Redis; rows are arrays, so their fields only ever grow at the end. Pure.
This module does not know where frames are kept or how rows come to be.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

NONE, WHOLE, CUT, HASH = range(4)  # what `body` and `answer` of a row hold: nothing, all, the beginning, the SHA-256

# marks, as in `samovar_dispatch.ask`
MARKS = ("cached", "fallback", "retried", "hedged", "shadow", "cold")
PRIORITIES = ("high", "normal", "low", "background")
_LENGTH = struct.Struct(">I")


class Row(msgspec.Struct, array_like=True, gc=False):
    """One invocation. seq: its number within the gateway's run. version: 0 when none was chosen.

    at_s: arrival, unix seconds. total_s, queue_s: until its end, and until an instance started it. run_us: in the
    handler. num_attempts: runs that ended in a lost instance. marks: bit i says MARKS[i]. boot_ms: phases of the boot
    it waited for. body_form, answer_form: what `body` and `answer` hold. answered_by: whose answer it is, where it is
    not its own: a version's ref, or "value". protocol: by which it came, as in `samovar_dispatch.ask`.
    """

    seq: int
    at_s: float
    version: int
    instance: str
    request_id: bytes
    key_id: str
    priority: int
    status: int
    code: str
    total_s: float
    queue_s: float
    run_us: int
    batch_size: int
    num_attempts: int
    marks: int
    bytes_in: int
    bytes_out: int
    content_type: str
    traceparent: str
    boot_ms: dict[str, float] | None
    body: bytes | None
    body_form: int
    answer: bytes | None
    answer_form: int
    answered_by: str = ""
    protocol: str = "native"


class Frame(NamedTuple):
    """Rows of one function of one gateway's run, as plain lists of `Row`'s fields."""

    run: str
    function: str
    rows: list[list[Any]]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[str, str, list[list[Any]]])


def encode_frame(run: str, function: str, rows: Sequence[Row]) -> bytes:
    """Return the frame of these rows. run: names this gateway and this start of it."""
    return _encoder.encode((run, function, rows))


def decode_frame(data: bytes) -> Frame:
    """Return what a frame holds. Raises msgspec.DecodeError."""
    return Frame(*_decoder.decode(data))


def prefixed(frame: bytes) -> bytes:
    """Return a frame behind its length, as the spool holds it."""
    return _LENGTH.pack(len(frame)) + frame


def frames_of(data: bytes) -> Iterator[Frame]:
    """Yield the frames of a spool file, up to where its writer was killed or its bytes make no sense."""
    offset = 0
    while offset + _LENGTH.size <= len(data):
        (length,) = _LENGTH.unpack_from(data, offset)
        offset += _LENGTH.size
        if offset + length > len(data):
            return
        try:
            yield decode_frame(data[offset : offset + length])
        except msgspec.DecodeError:
            return
        offset += length
