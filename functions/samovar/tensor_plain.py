"""Tensors as plain Python: lists of numbers and texts to contents and back, without arrays.

What has a size (64 KB of numbers and more) belongs into arrays; this is for JSON, and for handlers of lists.
Errors are InvalidInput with the tensor's name as path; whoever encodes an answer makes them errors of the function.
This module does not know specs, hints or HTTP.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Iterable, Sequence
from typing import Any

from samovar.errors import InvalidInput
from samovar.tensor_codec import TensorValue, elements, pack_elements

FORMATS = {
    "BOOL": "?", "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q", "INT8": "b", "INT16": "h", "INT32": "i",
    "INT64": "q", "FP16": "e", "FP32": "f", "FP64": "d",
}  # fmt: skip

PIECE_ELEMENTS = 32_768  # are packed in one call, which keeps the interpreter's lock


def flatten(name: str, value: Any, num_dims: int) -> tuple[list[int], list[Any]]:
    """Return shape and elements, row by row, of lists nested `num_dims` deep. Raises: InvalidInput if they are not, or
    if rows differ in length."""
    shape: list[int] = []
    level: Sequence[Any] = [value]
    for _ in range(num_dims):
        sizes = {len(row) if isinstance(row, list | tuple) else -1 for row in level}
        if -1 in sizes:
            raise InvalidInput(f"{name}: lists nested {num_dims} deep are expected", path=name)
        if len(sizes) > 1:
            raise InvalidInput(f"{name}: its rows differ in length, so they are no tensor", path=name)
        shape.append(sizes.pop() if sizes else 0)
        level = list(itertools.chain.from_iterable(level))
    return shape, list(level)


def nest(flat: Sequence[Any], shape: Sequence[int]) -> Any:
    """Return elements as lists nested as `shape` says; the one element itself for no dimension."""
    if not shape:
        return flat[0]
    rows: list[Any] = list(flat)
    for axis in range(len(shape) - 1, 0, -1):
        size = shape[axis]
        rows = [rows[begin * size : (begin + 1) * size] for begin in range(math.prod(shape[:axis]))]
    return rows


def pack(name: str, datatype: str, flat: Sequence[Any]) -> bytes:
    """Return the contents of a tensor. flat: bool for BOOL, int for integers, numbers for floats, str or bytes for
    BYTES. Raises: InvalidInput for an element of another kind, or out of the datatype's range."""
    if datatype == "BYTES":
        return pack_elements(_as_bytes(name, flat))
    pieces = (flat[begin : begin + PIECE_ELEMENTS] for begin in range(0, len(flat), PIECE_ELEMENTS))
    return b"".join([_pack_piece(name, datatype, piece) for piece in pieces])


def _pack_piece(name: str, datatype: str, flat: Sequence[Any]) -> bytes:
    wrong = _wrong(datatype, flat)
    if wrong is not None:
        raise InvalidInput(f"{name}: {str(wrong)[:100]!r} is no element of {datatype}", path=name)
    try:
        if datatype == "BF16":
            return _bf16(flat)
        return struct.pack(f"<{len(flat)}{FORMATS[datatype]}", *flat)
    except (struct.error, OverflowError, ValueError, TypeError) as error:
        raise InvalidInput(f"{name}: an element is no {datatype}: {error}", path=name) from None


def unpack(tensor: TensorValue) -> list[Any]:
    """Return the elements of a tensor that was checked, row by row: bool, int, float, or bytes for BYTES."""
    if tensor.datatype == "BYTES":
        return [bytes(one) for one in elements(tensor)]
    data = memoryview(tensor.data)
    if tensor.datatype == "BF16":
        wide = bytearray(2 * len(data))
        wide[2::4], wide[3::4] = data[0::2], data[1::2]
        return list(struct.unpack(f"<{len(data) // 2}f", wide))
    form = FORMATS[tensor.datatype]
    return list(struct.unpack(f"<{len(data) // struct.calcsize(form)}{form}", data))


def texts(name: str, items: Iterable[bytes]) -> list[str]:
    """Return elements of BYTES as text. Raises: InvalidInput if one is not UTF-8."""
    try:
        return [item.decode() for item in items]
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{name}: an element is not UTF-8: {error.reason}", path=name) from None


def _as_bytes(name: str, flat: Sequence[Any]) -> list[bytes]:
    try:
        return [item.encode() if isinstance(item, str) else bytes(memoryview(item)) for item in flat]
    except (TypeError, UnicodeEncodeError):
        raise InvalidInput(f"{name}: an element of BYTES is neither text nor bytes", path=name) from None


def _wrong(datatype: str, flat: Sequence[Any]) -> Any:
    """Return an element that `struct` would take, but that is of another kind; None if there is none."""
    if datatype == "BOOL":
        return next((item for item in flat if type(item) is not bool and item not in (0, 1)), None)
    if True in flat or False in flat:  # 1 and 0 are found by it, too: now look closer
        return next((item for item in flat if type(item) is bool), None)
    return None


def _bf16(flat: Sequence[Any]) -> bytes:
    """Return FP32's upper halves, rounded to the nearest, to even in the middle."""
    bits = struct.unpack(f"<{len(flat)}I", struct.pack(f"<{len(flat)}f", *flat))
    return struct.pack(f"<{len(flat)}H", *(_upper(one) for one in bits))


def _upper(bits: int) -> int:
    if bits & 0x7FFFFFFF > 0x7F800000:  # not a number: rounding could make it infinite
        return (bits >> 16) | 0x40
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
