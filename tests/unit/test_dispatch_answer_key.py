"""When two inputs are the same input."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar_dispatch.answers.answer_key import MAX_CANONICAL_BYTES, canonical, input_digest, parse_path, select

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4)
)


def reordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: reordered(value[key]) for key in sorted(value, reverse=True)}
    return [reordered(item) for item in value] if isinstance(value, list) else value


@given(values)
def test_order_white_space_and_escapes_do_not_matter(value: Any) -> None:
    plain = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    dressed = json.dumps(reordered(value), ensure_ascii=True, indent=3).encode()
    try:
        msgspec.json.decode(plain)
        msgspec.json.decode(dressed)
    except msgspec.DecodeError:
        return  # lone surrogates are no text: the bytes count
    assert input_digest(plain) == input_digest(dressed)


@given(values, values)
def test_different_values_are_different(one: Any, other: Any) -> None:
    same = msgspec.json.encode(one, order="sorted") == msgspec.json.encode(other, order="sorted")
    a, b = (input_digest(json.dumps(value).encode()) for value in (one, other))
    assert (a == b) == same


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (b"100.0", b"1e2", True),
        (b"1", b"1.0", False),  # a handler can tell
        (b"18446744073709551617", b"18446744073709551618", False),  # beyond 64 bits and floats
        (b'{"a":1,"a":2}', b'{"a":2}', True),  # the last one counts, as in the handler
        (b'{"a":1,"a":2}', b'{"a":1}', False),
        ('"\u00e9"'.encode(), b'"\\u00e9"', True),
        ('"\u00e9"'.encode(), '"e\u0301"'.encode(), False),  # they look the same only
        (b'{"a":null}', b"{}", False),
        (b"[1,2]", b"[2,1]", False),
        (b"{broken", b"{broken ", False),
        (b"\xff\xfe", b"\xff\xfe", True),
        (b"[" * 100_000, b"[" * 100_000 + b" ", False),
        (b"[" * 30_000 + b"]" * 30_000, b"[" * 30_000 + b" " + b"]" * 30_000, False),  # too deep to be parsed
    ],
)
def test_bytes_of_json(one: bytes, other: bytes, same: bool) -> None:
    assert (input_digest(one) == input_digest(other)) == same


def test_what_is_no_json_counts_byte_by_byte() -> None:
    assert input_digest(b"tea") != input_digest(b"tea ")
    assert input_digest(b"tea") == input_digest(b"tea")


def test_a_large_body_is_not_parsed() -> None:
    large = b'"' + b"x" * MAX_CANONICAL_BYTES + b'"'
    assert input_digest(large) == input_digest(large)
    assert input_digest(large) != input_digest(large + b" ")


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("$", [{"a": {"b": [1, {"c": 2}, {"c": 3}]}, "n": None}]),
        ("$.a.b[0]", [1]),
        ("$.a.b[*].c", [2, 3]),
        ("$.a.b[7]", []),
        ("$.n", [None]),
        ("$.missing.deeper", []),
        ("$.a.b.c", []),
        ("$[0]", []),
    ],
)
def test_paths_select(path: str, found: list[Any]) -> None:
    assert select({"a": {"b": [1, {"c": 2}, {"c": 3}]}, "n": None}, parse_path(path)) == found


def test_only_what_the_paths_name_counts() -> None:
    paths = [parse_path("$.prompt"), parse_path("$.options.seed")]
    digest = input_digest(b'{"prompt":"tea","options":{"seed":7},"user":"ann"}', paths)
    assert input_digest(b'{"user":"bob","options":{"seed":7,"x":1},"prompt":"tea"}', paths) == digest
    assert input_digest(b'{"prompt":"tea","options":{"seed":8}}', paths) != digest
    assert input_digest(b'{"prompt":"tea"}', paths) != digest
    assert input_digest(b'{"prompt":"tea","options":{"seed":null}}', paths) != input_digest(b'{"prompt":"tea"}', paths)


@given(st.binary(max_size=200))
def test_any_bytes_have_a_digest(body: bytes) -> None:
    assert len(input_digest(body, [parse_path("$.a")])) == 32


def test_canonical_is_the_shortest_way_to_write_it() -> None:
    assert canonical(b' {"b": [1.50, "\\u0061"], "a": true} ') == b'{"a":true,"b":[1.5,"a"]}'
