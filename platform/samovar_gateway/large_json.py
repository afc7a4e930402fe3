"""JSON that is large, read and written a piece at a time. Pure, and to be done in a thread.

One call into the decoder keeps the interpreter's lock to its end: 0.2 s for 10 MB of small values, in which nobody else
of the gateway has a turn. In between pieces of PIECE_BYTES others have theirs.

| value                               | how
|-------------------------------------|---------------------------------------------------------------------------------
| object, list (the outer MAX_LEVELS) | its members are found without being read, then each is read like this
| list without texts and objects      | cut at commas: the lists open at a cut are closed there, and opened behind it
| few commas: mostly text             | in one call, which mostly copies: 20 ms for 10 MB

Syntax is checked by the first look at the whole: what is cut is known to be a list. How many lists and objects there
may be is bounded: the collector of garbage looks at all of them, again and again while they come to be. 3 million kept
everybody waiting for 3.6 s. So are the members of objects, which are found in one call: a million took 0.9 s.
This module does not know what values mean.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from samovar.errors import RequestError

PIECE_BYTES = 64 << 10
PIECE_ITEMS = 4096
SPARSE_BYTES = 128  # values that take more than that each are read in one call: what they take is copying
MAX_OPENED = 524_288  # lists and objects of one body
MAX_MEMBERS = 131_072  # of all its objects together
SMALL_BYTES = 1 << 20  # cannot hold so many that it matters
MAX_LEVELS = 6  # each looks over its members once more: below them a value is read in one call

_NAME_END = re.compile(rb'"[ \t\r\n]*:')
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items = msgspec.json.Decoder(list[msgspec.Raw])
_plain = msgspec.json.Decoder()


def read(text: bytes) -> Any:
    """Return what `msgspec.json.decode` does; what is no object in one call. Raises: msgspec.DecodeError,
    UnicodeDecodeError, RecursionError; RequestError as `require_few`."""
    require_few(text)
    return _read(text, MAX_LEVELS) if text.lstrip()[:1] == b"{" else _plain.decode(text)


def read_member(raw: msgspec.Raw) -> Any:
    """Return a value within an object that was decoded. Raises: as `read`."""
    text = bytes(raw)
    require_few(text)
    return _read(text, MAX_LEVELS)


def write(values: Sequence[Any]) -> msgspec.Raw:
    """Return a list as JSON, to be put into what is encoded. Raises: as `msgspec.json.encode`."""
    starts = range(0, len(values), PIECE_ITEMS)
    return msgspec.Raw(b"[%s]" % b",".join([msgspec.json.encode(values[a : a + PIECE_ITEMS])[1:-1] for a in starts]))


def require_few(text: bytes) -> None:
    """Return if not too much comes to be of a text. Raises: RequestError for more than MAX_OPENED brackets or about
    MAX_MEMBERS members; also where most of them are within texts."""
    if len(text) <= SMALL_BYTES:
        return
    if text.count(b"[") + text.count(b"{") > MAX_OPENED:
        raise RequestError(f"a body of JSON has at most {MAX_OPENED:,} lists and objects ([ and {{ are counted)")
    if text.count(b":") > MAX_MEMBERS and _num_members(text) > MAX_MEMBERS:
        raise RequestError(f"the objects in a body of JSON have at most {MAX_MEMBERS:,} members together")


def _num_members(text: bytes) -> int:
    """Return how many members objects have at most, but for what is cut apart. Counted are quotes before colons, except
    those behind one backslash, which are within a text: JSON that is told as text is not counted."""
    starts = range(0, len(text), PIECE_BYTES)
    ends = sum(len(_NAME_END.findall(text, start, start + PIECE_BYTES)) for start in starts)
    return ends - text.count(b'\\":') + text.count(b'\\\\":')


def _read(text: bytes, levels: int) -> Any:
    if len(text) <= PIECE_BYTES or not levels or text.count(b",") * SPARSE_BYTES < len(text):
        return _plain.decode(text)
    first = text.lstrip()[:1]
    if first == b"{":
        return {name: _read(bytes(raw), levels - 1) for name, raw in _members.decode(text).items()}
    if first != b"[":
        return _plain.decode(text)
    if b'"' not in text and b"{" not in text:
        return _read_numbers(text)
    return [_read(bytes(raw), levels - 1) for raw in _items.decode(text)]


def _read_numbers(text: bytes) -> list[Any]:
    """Return nested lists without texts and objects."""
    found: list[Any] = []
    begin = depth = 0
    while begin < len(text):
        end = text.find(b",", begin + PIECE_BYTES)
        piece = text[begin : end if end >= 0 else len(text)]
        opened = depth
        depth += piece.count(b"[") - piece.count(b"]")
        _append(found, _plain.decode(b"[" * (opened + 1) + piece + b"]" * (depth + 1)), opened)
        begin += len(piece) + 1
    value: list[Any] = found[0]
    return value


def _append(found: list[Any], more: list[Any], depth: int) -> None:
    """Put `more` behind `found`: its first member goes on with the last one there, `depth` lists deep."""
    while depth:
        found += more[1:]
        found, more, depth = found[-len(more)], more[0], depth - 1
    found += more
