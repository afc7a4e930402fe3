"""JSON read a piece at a time is read as in one call, whether it is right or wrong."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.errors import RequestError
from samovar_gateway import large_json

SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-(2**53), 2**53), st.floats(allow_nan=False, width=32))
NUMBERS = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=5), max_leaves=40)
VALUES = st.recursive(
    SCALARS | st.text(max_size=20) | st.sampled_from(['a,b[]{}"\\', "]", "чай"]),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=40,
)
PIECES = st.sampled_from([1, 2, 7, 40])
BODIES = st.dictionaries(st.text(max_size=5), NUMBERS | VALUES, max_size=4)


@pytest.fixture(autouse=True)
def pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes are set by each example."""
    monkeypatch.setattr(large_json, "PIECE_BYTES", large_json.PIECE_BYTES)
    monkeypatch.setattr(large_json, "SPARSE_BYTES", 1 << 30)


def read(decode: Any, text: bytes) -> Any:
    try:
        return decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return "not JSON"


@given(BODIES, PIECES, st.booleans())
def test_what_is_right_is_read_alike(body: dict[str, Any], piece_bytes: int, is_spaced: bool) -> None:
    large_json.PIECE_BYTES = piece_bytes
    text = msgspec.json.encode(body)
    if is_spaced:
        text = b"\n " + msgspec.json.format(text, indent=1) + b"\t"
    assert large_json.read(text) == msgspec.json.decode(text)


@given(BODIES, PIECES, st.lists(st.tuples(st.integers(0, 10_000), st.sampled_from(b'[]{},":1 \\')), min_size=1))
def test_what_is_wrong_is_wrong_alike(body: dict[str, Any], piece_bytes: int, slips: list[tuple[int, int]]) -> None:
    large_json.PIECE_BYTES = piece_bytes
    text = bytearray(msgspec.json.encode(body))
    for place, slip in slips:
        text[place % len(text)] = slip
    assert read(large_json.read, bytes(text)) == read(msgspec.json.decode, bytes(text))


@given(st.lists(SCALARS, max_size=30), st.integers(1, 10))
def test_lists_are_written_alike(values: list[Any], piece_items: int) -> None:
    large_json.PIECE_ITEMS = piece_items
    try:
        assert msgspec.json.encode({"a": large_json.write(values)}) == msgspec.json.encode({"a": values})
    finally:
        large_json.PIECE_ITEMS = 4096


def members(count: int, between: bytes = b":") -> bytes:
    return b"{" + b",".join(b'"%07d"%s1' % (number, between) for number in range(count)) + b"}"


@pytest.mark.parametrize("between", [b":", b" \r\n:", b'\\\\":'])  # the last: names that end in a backslash
def test_more_members_than_one_call_should_find_are_refused(between: bytes) -> None:
    most = members(large_json.MAX_MEMBERS, between).replace(b'"\\\\":', b'\\\\":')
    assert len(large_json.read(most)) == large_json.MAX_MEMBERS
    with pytest.raises(RequestError, match="131,072 members"):
        large_json.read(b'{"a": %s, "b": %s}' % (most, most))


def test_json_that_is_told_as_text_has_no_members() -> None:
    told = members(large_json.MAX_MEMBERS * 2).decode()
    assert large_json.read(msgspec.json.encode({"prompt": told})) == {"prompt": told}


def test_more_lists_than_the_collector_bears_are_refused() -> None:
    most = b'{"a": [' + b",".join([b"[]"] * (large_json.MAX_OPENED - 2)) + b"]}"
    assert len(large_json.read(most)["a"]) == large_json.MAX_OPENED - 2
    with pytest.raises(RequestError, match="524,288 lists and objects"):
        large_json.read(most[:-2] + b",[]]}")
