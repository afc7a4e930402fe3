"""Between JSON and the handler: decoding with paths, calling, encoding, schemas."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import samovar as sv
from samovar.authoring import definition_of
from samovar.errors import BadOutput, InvalidInput, RequestError, SamovarError
from samovar.schema import Input, Output, input_schema, output_schema


@dataclass
class Item:
    text: str
    tags: list[str]


class Tree(msgspec.Struct):
    children: list[Tree] = []


def fields(text: str, n: int = 3) -> str:
    return text * n


def body(item: Item) -> None: ...
def defaults(tags: list[str] = ["a"]) -> None: ...  # noqa: B006
def array(x: np.ndarray) -> np.ndarray:
    return x


def plain_object(x: object) -> None: ...
def nothing() -> None: ...
def tree(root: Tree) -> None: ...


def shape(handler: Callable[..., Any], batch: sv.Batch | None = None) -> Input:
    return Input(definition_of(_copy(handler, batch)))


def _copy(handler: Callable[..., Any], batch: sv.Batch | None = None) -> Any:
    """The handler, decorated anew: marks are per function object."""
    import types

    copied = types.FunctionType(handler.__code__, handler.__globals__, handler.__name__, handler.__defaults__)
    copied.__annotations__ = handler.__annotations__
    return sv.function(batch=batch)(copied)


@pytest.mark.parametrize(
    ("sent", "args"),
    [(b'{"text": "tea"}', ("tea", 3)), (b'{"n": 1, "text": ""}', ("", 1))],
)
def test_fields_become_arguments(sent: bytes, args: tuple[Any, ...]) -> None:
    decoder = shape(fields)
    assert decoder.invoke_args(decoder.decode(sent)) == args


def test_the_whole_body_becomes_the_one_argument() -> None:
    decoder = shape(body)
    assert decoder.invoke_args(decoder.decode(b'{"text": "tea", "tags": []}')) == (Item("tea", []),)


def test_an_empty_body_is_an_empty_object_when_nothing_is_required() -> None:
    assert shape(nothing).invoke_args(shape(nothing).decode(b"")) == ()
    first, second = (shape(defaults).decode(b"") for _ in range(2))
    assert first.tags == ["a"]
    assert first.tags is not second.tags, "a mutable default is not shared between calls"


def test_batch_items_are_what_single_calls_send() -> None:
    def texts(text: list[str]) -> list[str]:
        return text

    def items(items: list[Item]) -> list[str]:
        return [item.text for item in items]

    by_field = Input(definition_of(sv.function(batch=sv.Batch())(texts)))
    assert by_field.decode(b'{"text": "tea"}') == "tea"
    assert by_field.invoke_args(["tea", "cup"]) == (["tea", "cup"],)
    whole = Input(definition_of(sv.function(batch=sv.Batch())(items)))
    assert whole.decode(b'{"text": "tea", "tags": ["x"]}') == Item("tea", ["x"])


@pytest.mark.parametrize(
    ("handler", "sent", "path"),
    [
        (fields, b'{"text": 1}', "$.text"),
        (fields, b"{}", "$.text"),
        (fields, b"[]", "$"),
        (fields, b'{"text": "a", "txet": 1}', "$"),
        (body, b'{"text": "a", "tags": ["b", 2]}', "$.tags[1]"),
        (array, b'{"x": "no"}', "$.x"),
    ],
)
def test_wrong_types_name_the_path(handler: Callable[..., Any], sent: bytes, path: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        shape(handler).decode(sent)
    assert caught.value.extra["path"] == path
    assert path in caught.value.detail


@pytest.mark.parametrize("sent", [b"", b"{", b'{"text": NaN}', b'{"text": "\xff"}', b"nonsense"])
def test_broken_json_is_a_400(sent: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        shape(fields).decode(sent)
    assert (caught.value.status, caught.value.code) == (400, "malformed")


def test_a_body_nested_without_end_is_refused() -> None:
    with pytest.raises(RequestError):
        shape(tree).decode(b'{"children": [' * 100_000)


@given(st.binary())
def test_no_body_raises_anything_else(sent: bytes) -> None:
    try:
        shape(fields).decode(sent)
    except SamovarError as error:
        assert error.status in (400, 422)


_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(_json)
def test_json_values_come_back_equal(value: Any) -> None:
    assert json.loads(Output().encode(value)) == value


def test_arrays_become_lists() -> None:
    encoded = Output().encode({"a": np.arange(4, dtype=np.float32).reshape(2, 2), "b": np.float64(1.5)})
    assert json.loads(encoded) == {"a": [[0, 1], [2, 3]], "b": 1.5}
    decoder = shape(array)
    (x,) = decoder.invoke_args(decoder.decode(b'{"x": [[1, 2], [3, 4]]}'))
    assert x.shape == (2, 2)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (math.nan, "$"),
        ({"a": [1.0, -math.inf]}, "$.a[1]"),
        ({"a": {"b": np.array([[1.0, np.nan]])}, "c": None}, "$.a.b[0][1]"),
        (Item("x", [math.inf]), "$.tags[0]"),  # type: ignore[list-item]
    ],
)
def test_what_is_not_a_number_is_refused_with_its_path(value: Any, path: str) -> None:
    with pytest.raises(BadOutput) as caught:
        Output().encode(value)
    assert caught.value.extra["path"] == path


def _endless() -> list[Any]:
    endless: list[Any] = []
    endless.append(endless)
    return endless


@pytest.mark.parametrize("value", [object(), "\ud800", {(1, 2): 3}, _endless(), 1j])
def test_what_json_cannot_carry_is_refused(value: Any) -> None:
    with pytest.raises(BadOutput):
        Output().encode(value)


def test_null_is_an_answer() -> None:
    assert Output().encode({"a": None}) == b'{"a":null}'


def test_schemas() -> None:
    schema = input_schema(definition_of(_copy(fields)))
    assert schema["properties"] == {"text": {"type": "string"}, "n": {"type": "integer", "default": 3}}
    assert schema["required"] == ["text"]
    assert input_schema(definition_of(_copy(array)))["properties"]["x"] == {"type": "array"}
    assert output_schema(definition_of(_copy(array))) == {"type": "array"}
    assert output_schema(definition_of(_copy(fields))) == {"type": "string"}
    recursive = input_schema(definition_of(_copy(tree)))
    assert recursive["$ref"] == "#/$defs/Tree"
    assert recursive["$defs"]["Tree"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Tree"}


def test_types_that_json_cannot_carry_have_no_schema() -> None:
    with pytest.raises(TypeError, match="object"):
        input_schema(definition_of(_copy(plain_object)))
