"""The body between gateway and instance that carries tensors: `application/vnd.samovar.tensors`.

    4 bytes     length of the header, little-endian
    header      msgpack: [[name, datatype, [size, …], bytes], …]
    then, for each tensor in order: zeros up to the next multiple of ALIGNMENT, and its contents

Contents are little-endian, row by row; elements of BYTES are each 4 bytes of length and that many bytes. It is what
binary tensors of the Open Inference Protocol are, so that they pass through the gateway unread. Of a batch handler a
body is one item, without the batch dimension. Reading copies nothing: contents are views on the body.
This module does not know arrays, specs or HTTP.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import msgspec

from samovar.errors import InvalidInput
from samovar.tensors import DATATYPES, ITEM_BYTES, TensorSpec, fits, num_elements

MEDIA_TYPE = "application/vnd.samovar.tensors"
MAX_BYTES_ELEMENTS = 1 << 18  # each is an object in Python: two seconds of work for a million of them
ALIGNMENT = 16  # of contents within a body, so that arrays may be views on them
_LENGTH = struct.Struct("<I")
_ZEROS = bytes(ALIGNMENT)

Contents = bytes | bytearray | memoryview


class TensorValue(msgspec.Struct, frozen=True):
    """One tensor. shape: sizes >= 0. data: its contents, as many as datatype and shape say once it was checked."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: Contents


class _Head(msgspec.Struct, array_like=True, frozen=True):
    name: str
    datatype: str
    shape: list[int]
    num_bytes: int


_heads = msgspec.msgpack.Decoder(list[_Head])
_encode = msgspec.msgpack.encode


def encode(tensors: Sequence[TensorValue]) -> bytes:
    """Return the body of `tensors`: one copy of their contents."""
    header = _encode([(one.name, one.datatype, one.shape, len(one.data)) for one in tensors])
    parts: list[Contents] = [_LENGTH.pack(len(header)), header]
    position = _LENGTH.size + len(header)
    for one in tensors:
        gap = -position % ALIGNMENT
        parts += (_ZEROS[:gap], one.data)
        position += gap + len(one.data)
    return b"".join(parts)


def decode(body: Contents) -> list[TensorValue]:
    """Return the tensors of a body, each checked. Raises: InvalidInput with the path of what is not as it says."""
    view = memoryview(body)
    if len(view) < _LENGTH.size:
        raise InvalidInput("$: the body is too short for tensors", path="$")
    start = _LENGTH.size
    end = start + _LENGTH.unpack_from(view)[0]
    if end > len(view):
        raise InvalidInput("$: the header of the tensors is longer than the body", path="$")
    try:
        heads = _heads.decode(view[start:end])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"$: the header of the tensors is not one: {error}", path="$") from None
    tensors = []
    for head in heads:
        begin = end + -end % ALIGNMENT
        end = begin + head.num_bytes
        if head.num_bytes < 0 or end > len(view):
            told = f"{head.name}: {head.num_bytes} bytes are announced, more than the body holds"
            raise InvalidInput(told, path=head.name)
        tensors.append(TensorValue(head.name, head.datatype, tuple(head.shape), view[begin:end]))
        check(tensors[-1])
    if end != len(view):
        raise InvalidInput(f"$: {len(view) - end} bytes follow the last tensor", path="$")
    return tensors


def check(tensor: TensorValue) -> None:
    """Return if datatype, shape and contents agree. Raises: InvalidInput with the tensor's name as path."""
    name = tensor.name
    if tensor.datatype not in DATATYPES:
        raise InvalidInput(f"{name}: there is no datatype {tensor.datatype[:32]!r}", path=name)
    count = num_elements(tensor.shape, name)
    if tensor.datatype == "BYTES":
        if count > MAX_BYTES_ELEMENTS:
            raise InvalidInput(f"{name}: at most {MAX_BYTES_ELEMENTS} elements of BYTES are possible", path=name)
        num_found = sum(1 for _ in islice(elements(tensor), count + 1))
        if num_found != count:
            more = "" if num_found < count else " or more"
            raise InvalidInput(f"{name}: {num_found} elements came{more}, its shape has {count}", path=name)
    elif len(tensor.data) != count * ITEM_BYTES[tensor.datatype]:
        expected = count * ITEM_BYTES[tensor.datatype]
        told = f"{name}: {len(tensor.data)} bytes came, {tensor.datatype} of shape {list(tensor.shape)} has {expected}"
        raise InvalidInput(told, path=name)
    if tensor.datatype == "BOOL" and bytes(tensor.data).translate(None, b"\0\1"):
        raise InvalidInput(f"{name}: an element of BOOL is neither 0 nor 1", path=name)


def check_inputs(tensors: Sequence[TensorValue], specs: Sequence[TensorSpec], required: Iterable[str]) -> None:
    """Return if these are tensors that `specs` describe, each at most once and none that is required missing.

    Raises: InvalidInput with the name of the tensor that is not.
    """
    known = {spec.name: spec for spec in specs}
    given: set[str] = set()
    for tensor in tensors:
        name, spec = tensor.name, known.get(tensor.name)
        if spec is None:
            told = f"{name[:100]}: there is no input of this name; there is {', '.join(known)}"
            raise InvalidInput(told, path=name[:100])
        if name in given:
            raise InvalidInput(f"{name}: the input came twice", path=name)
        if tensor.datatype != spec.datatype:
            raise InvalidInput(f"{name}: {spec.datatype} is expected, not {tensor.datatype}", path=name)
        if not fits(tensor.shape, spec):
            told = f"{name}: shape {told_shape(spec)} is expected, not {list(tensor.shape)}"
            raise InvalidInput(told, path=name)
        given.add(name)
    for name in required:
        if name not in given:
            raise InvalidInput(f"{name}: the input is missing", path=name)


def told_shape(spec: TensorSpec) -> str:
    """Return a spec's shape in words of an error."""
    return str([*spec.shape[:-1], "..."] if spec.any_rank else spec.shape).replace("'", "")


def elements(tensor: TensorValue) -> Iterator[memoryview]:
    """Yield the elements of a tensor of BYTES. Raises: InvalidInput where a length leads out of its contents."""
    view = memoryview(tensor.data)
    position, end = 0, len(view)
    while position < end:
        begin = position + _LENGTH.size
        position = begin + _LENGTH.unpack_from(view, position)[0] if begin <= end else end + 1
        if position > end:
            told = f"{tensor.name}: an element of BYTES is longer than what is left of the tensor"
            raise InvalidInput(told, path=tensor.name)
        yield view[begin:position]


def pack_elements(items: Iterable[Contents]) -> bytes:
    """Return the contents of a tensor of BYTES."""
    parts: list[Contents] = []
    for item in items:
        parts += (_LENGTH.pack(len(item)), item)
    return b"".join(parts)
