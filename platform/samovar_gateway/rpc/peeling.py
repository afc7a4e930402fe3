"""Tensors in messages of protobuf without a copy of each: their contents are cut out of a message as views on it, and
put behind the rest of one as they are. What is left of a message is small, and protobuf's. Pure.

    field of bytes on the wire:  key (number << 3 | 2) · length · contents          key and length are varints
"""

from __future__ import annotations

from collections.abc import Sequence

from samovar.errors import RequestError
from samovar.tensor_codec import Contents

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_SIZES = {_FIXED64: 8, _FIXED32: 4}
_MAX_VARINT_BYTES = 10
MAX_FIELDS = 1 << 14  # outermost ones: a few for each tensor; what has more is made to keep us busy


def peel(message: bytes, number: int) -> tuple[bytes, list[memoryview]]:
    """Return a message without its outermost fields of bytes `number`, and the contents of those, in order.

    Raises: RequestError if it is no message, or has more than MAX_FIELDS; what is left may still not be one.
    """
    view = memoryview(message)
    wanted = number << 3 | _BYTES
    rest: list[memoryview] = []
    peeled: list[memoryview] = []
    position = kept = num_fields = 0
    while position < len(view):
        begin = position
        num_fields += 1
        if num_fields > MAX_FIELDS:
            raise RequestError(f"a message has at most {MAX_FIELDS} fields")
        key, position = _varint(message, position)
        kind = key & 7
        if kind == _BYTES:
            length, position = _varint(message, position)
            position += length
        elif kind == _VARINT:
            _, position = _varint(message, position)
        else:
            position += _SIZES.get(kind, len(view) + 1)
        if position > len(view):
            raise _broken()
        if key == wanted:
            peeled.append(view[position - length : position])
            rest.append(view[kept:begin])
            kept = position
    rest.append(view[kept:])
    return b"".join(rest), peeled


def field(number: int, length: int) -> bytes:
    """Return what stands in front of `length` bytes that are the contents of field `number`."""
    return _encoded(number << 3 | _BYTES) + _encoded(length)


def behind(message: bytes, number: int, contents: Sequence[Contents]) -> list[Contents]:
    """Return a message, in parts, that also has the fields of bytes `number`."""
    parts: list[Contents] = [message]
    for one in contents:
        parts += (field(number, len(one)), one)
    return parts


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """Return the number at a position, and the position behind it."""
    if position < len(message) and message[position] < 0x80:  # nearly all are: one byte
        return message[position], position + 1
    value = 0
    for place, byte in enumerate(message[position : position + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, position + place + 1
    raise _broken()


def _encoded(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _broken() -> RequestError:
    return RequestError("this is no message of the Open Inference Protocol: a field leads out of it")
