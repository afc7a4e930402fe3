"""How two answers differ."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar_dispatch.comparison import MAX_PATHS, differences

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.floats(allow_nan=False, allow_infinity=False, width=32)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("answer", "copy", "paths"),
    [
        ({"a": 1, "b": [1, 2]}, {"b": [1.0, 2], "a": 1}, []),
        ({"score": 0.5}, {"score": 0.50001}, []),
        ({"score": 0.5}, {"score": 0.51}, ["$.score"]),
        ({"items": [{"id": 1}, {"id": 2}]}, {"items": [{"id": 9}, {"id": 8}]}, ["$.items[*].id"]),
        ({"items": [1]}, {"items": [1, 2]}, ["$.items"]),
        ({"a": 1}, {"a": 1, "b": 2}, ["$.b"]),
        (True, 1, ["$"]),
        ("1", 1, ["$"]),
        (None, {}, ["$"]),
        (0.0, 1e-9, []),
    ],
)
def test_where_answers_differ(answer: Any, copy: Any, paths: list[str]) -> None:
    assert differences(json.dumps(answer).encode(), json.dumps(copy).encode()) == paths


def test_what_is_no_json_is_compared_by_bytes() -> None:
    assert differences(b"\xff\x00", b"\xff\x00") == [] and differences(b"\xff", b"\xfe") == ["$"]
    assert differences(b"{}", b"{") == ["$"]


def test_paths_are_bounded() -> None:
    wide = {f"k{n}": n for n in range(200)}
    assert len(differences(json.dumps(wide).encode(), b"{}")) == MAX_PATHS


@given(JSON)
def test_an_answer_equals_itself_however_it_is_written(value: Any) -> None:
    assert differences(json.dumps(value).encode(), json.dumps(value, indent=1, sort_keys=True).encode()) == []


@given(JSON, JSON)
def test_differences_are_the_same_from_both_sides(one: Any, other: Any) -> None:
    left, right = json.dumps(one).encode(), json.dumps(other).encode()
    assert set(differences(left, right)) == set(differences(right, left))
