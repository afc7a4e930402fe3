"""Bodies of tensors: whatever goes in comes out, and whatever lies is refused by its name."""

from __future__ import annotations

import math
import struct
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.errors import InvalidInput
from samovar.tensor_codec import (
    ALIGNMENT,
    MAX_BYTES_ELEMENTS,
    TensorValue,
    check,
    check_inputs,
    decode,
    elements,
    encode,
    pack_elements,
)
from samovar.tensor_plain import FORMATS, flatten, nest, pack, texts, unpack
from samovar.tensors import ITEM_BYTES, MAX_ELEMENTS, TensorSpec, fits, num_elements

INTS = {name: form for name, form in FORMATS.items() if form.lower() in "bhiq"}
shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
names = st.text(max_size=10)


@st.composite
def tensors(draw: st.DrawFn) -> TensorValue:
    """Any tensor with contents of its shape."""
    datatype = draw(st.sampled_from([*ITEM_BYTES, "BYTES"]))
    shape = draw(shapes)
    count = math.prod(shape)
    if datatype == "BYTES":
        data = pack_elements(draw(st.lists(st.binary(max_size=5), min_size=count, max_size=count)))
    elif datatype == "BOOL":
        data = bytes(draw(st.lists(st.integers(0, 1), min_size=count, max_size=count)))
    else:
        size = count * ITEM_BYTES[datatype]
        data = draw(st.binary(min_size=size, max_size=size))
    return TensorValue(draw(names), datatype, shape, data)


@given(st.lists(tensors(), max_size=4))
def test_whatever_goes_in_comes_out(given: list[TensorValue]) -> None:
    body = encode(given)
    found = decode(body)
    assert [(one.name, one.datatype, one.shape, bytes(one.data)) for one in found] == [
        (one.name, one.datatype, one.shape, one.data) for one in given
    ]
    whole = np.frombuffer(body, "u1").__array_interface__["data"][0]
    for one in found:
        assert isinstance(one.data, memoryview) and one.data.obj is body, "contents are views on the body"
        if len(one.data):
            assert (np.frombuffer(one.data, "u1").__array_interface__["data"][0] - whole) % ALIGNMENT == 0


@given(st.lists(tensors(), max_size=3), st.data())
def test_a_changed_body_is_refused_or_is_tensors(given: list[TensorValue], data: st.DataObject) -> None:
    body = bytearray(encode(given))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(body[: data.draw(st.integers(0, len(body)))])
    for wrong in (bytes(body), cut, bytes(body) + b"x"):
        try:
            for one in decode(wrong):
                check(one)
        except InvalidInput as error:
            assert error.extra["path"] is not None


def body_of(head: list[Any], contents: bytes = b"") -> bytes:
    """Return a body with this header, whatever it says."""
    header = msgspec.msgpack.encode(head)
    gap = -(4 + len(header)) % ALIGNMENT
    return struct.pack("<I", len(header)) + header + bytes(gap) + contents


LIES: list[tuple[bytes, str, str]] = [
    (b"", "$", "too short"),
    (b"\xff\xff\xff\xff", "$", "longer than the body"),
    (b"\x01\0\0\0\xc1", "$", "not one"),
    (body_of(["x"]), "$", "not one"),
    (body_of([["x", "FP32", [1], 8]], b"1234"), "x", "more than the body holds"),
    (body_of([["x", "FP32", [1], -4]], b"1234"), "x", "more than the body holds"),
    (body_of([["x", "FP32", [2], 4]], b"1234"), "x", "has 8"),
    (body_of([["x", "FP32", [1], 4]], b"12345"), "$", "1 bytes follow"),
    (body_of([["x", "FP99", [1], 4]], b"1234"), "x", "no datatype"),
    (body_of([["x", "FP32", [-1], 4]], b"1234"), "x", "whole number"),
    (body_of([["x", "FP32", [2**40, 2**40], 4]], b"1234"), "x", "is larger than"),
    (body_of([["x", "FP32", [0, 2**63], 0]]), "x", "is larger than"),
    (body_of([["x", "FP32", [1] * 33, 4]], b"1234"), "x", "at most 32 dimensions"),
    (body_of([["x", "BYTES", [1], 5]], b"\x02\0\0\0a"), "x", "longer than what is left"),
    (body_of([["x", "BYTES", [1], 2]], b"\x02\0"), "x", "longer than what is left"),
    (body_of([["x", "BYTES", [2], 5]], b"\x01\0\0\0a"), "x", "1 elements came"),
    (body_of([["x", "BYTES", [0], 5]], b"\x01\0\0\0a"), "x", "1 elements came"),
    (body_of([["x", "BOOL", [2], 2]], b"\x01\x02"), "x", "neither 0 nor 1"),
]


@pytest.mark.parametrize(("body", "path", "text"), LIES)
def test_lies(body: bytes, path: str, text: str) -> None:
    with pytest.raises(InvalidInput, match=text) as caught:
        decode(body)
    assert caught.value.extra["path"] == path


@given(st.sampled_from(sorted(INTS)), st.data())
def test_integers_go_both_ways(datatype: str, data: st.DataObject) -> None:
    size, signed = 8 * ITEM_BYTES[datatype], datatype.startswith("INT")
    low, high = (-(2 ** (size - 1)), 2 ** (size - 1) - 1) if signed else (0, 2**size - 1)
    values = data.draw(st.lists(st.integers(low, high)))
    packed = pack("x", datatype, values)
    assert unpack(TensorValue("x", datatype, (len(values),), packed)) == values
    for beyond in (low - 1, high + 1):
        with pytest.raises(InvalidInput, match=f"^x: an element is no {datatype}"):
            pack("x", datatype, [beyond])


@given(st.lists(st.floats(width=32)), st.sampled_from(["FP16", "FP32", "FP64"]))
def test_floats_are_numpy_s(values: list[float], datatype: str) -> None:
    kinds = {"FP16": "<f2", "FP32": "<f4", "FP64": "<f8"}
    with np.errstate(over="ignore"):
        array = np.array(values, kinds[datatype])
    fit = [
        value
        for value, rounded in zip(values, array, strict=True)
        if math.isinf(value) or np.isfinite(rounded) or math.isnan(value)
    ]
    with np.errstate(over="ignore"):
        wanted = np.array(fit, kinds[datatype])
    found = np.frombuffer(pack("x", datatype, fit), kinds[datatype])
    assert np.array_equal(found, wanted, equal_nan=True)
    back = unpack(TensorValue("x", datatype, (len(fit),), pack("x", datatype, fit)))
    assert np.array_equal(np.array(back, kinds[datatype]), wanted, equal_nan=True)


@given(st.lists(st.floats(width=32)))
def test_bfloat16_rounds_to_the_nearest(values: list[float]) -> None:
    back = unpack(TensorValue("x", "BF16", (len(values),), pack("x", "BF16", values)))
    for value, rounded in zip(values, back, strict=True):
        if math.isnan(value):
            assert math.isnan(rounded)
        elif math.isinf(rounded):
            assert abs(value) >= 3.3895e38 and math.copysign(1, value) == math.copysign(1, rounded)
        else:
            assert abs(value - rounded) <= max(abs(value) / 256, 1e-40)


@pytest.mark.parametrize(
    ("datatype", "wrong"),
    [("INT64", [True]), ("INT64", [1.0]), ("FP32", [True]), ("FP32", ["1"]), ("FP32", [None]), ("BOOL", [2]),
     ("BOOL", ["true"]), ("BYTES", [1]), ("BYTES", [None]), ("BYTES", ["\ud800"]), ("FP16", [1e6]), ("FP32", [1e39]),
     ("UINT8", [0, 1, True]), ("BF16", [[1]])],
)  # fmt: skip
def test_elements_of_another_kind(datatype: str, wrong: list[Any]) -> None:
    with pytest.raises(InvalidInput, match=r"^x: "):
        pack("x", datatype, wrong)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_texts_go_both_ways(values: list[str]) -> None:
    tensor = TensorValue("x", "BYTES", (len(values),), pack("x", "BYTES", values))
    check(tensor)
    assert texts("x", unpack(tensor)) == values
    assert [bytes(one).decode() for one in elements(tensor)] == values


def test_bytes_that_are_no_text() -> None:
    with pytest.raises(InvalidInput, match=r"^x: an element is not UTF-8"):
        texts("x", [b"\xff"])


@given(st.lists(st.integers(1, 4), max_size=4).map(tuple))
def test_nesting_goes_both_ways(shape: tuple[int, ...]) -> None:
    values = [*range(math.prod(shape))]
    nested = nest(values, shape)
    assert nested == np.array(values).reshape(shape).tolist()
    assert flatten("x", nested, len(shape)) == ([*shape], values)


def test_nests_that_are_empty_or_none() -> None:
    assert flatten("x", [], 2) == ([0, 0], [])
    assert flatten("x", [[], []], 2) == ([2, 0], [])
    assert nest([], (0, 3)) == [] and nest([], (2, 0)) == [[], []]
    for value, depth, text in [
        ([1, [2]], 2, "nested 2 deep"),
        ([[1], [2, 3]], 2, "differ in length"),
        (1, 1, "nested 1"),
    ]:
        with pytest.raises(InvalidInput, match=f"^x: .*{text}"):
            flatten("x", value, depth)


@pytest.mark.parametrize(
    ("shape", "wanted", "any_rank", "fit"),
    [([2, 3], [-1, 3], False, True), ([2, 4], [-1, 3], False, False), ([2], [-1, 3], False, False),
     ([], [1], False, True), ([1], [1], False, True), ([2], [1], False, False), ([5, 1], [-1], False, True),
     ([5, 2], [-1], False, False), ([1], [], False, True), ([], [], False, True), ([], [-1], True, True),
     ([2, 3, 4], [-1], True, True), ([5, 2], [-1, -1], True, True), ([], [-1, -1], True, False)],
)  # fmt: skip
def test_which_shapes_fit(shape: list[int], wanted: list[int], any_rank: bool, fit: bool) -> None:
    assert fits(shape, TensorSpec(name="x", datatype="FP32", shape=wanted, any_rank=any_rank)) is fit


def test_shapes_that_are_none() -> None:
    assert num_elements([2, 0, 3], "x") == 0 and num_elements([], "x") == 1
    for shape in ([-1], [1.0], [True], [MAX_ELEMENTS + 1], [MAX_ELEMENTS, 2], [0, MAX_ELEMENTS + 1], [1] * 33):
        with pytest.raises(InvalidInput):
            num_elements(shape, "x")  # type: ignore[arg-type]


def test_inputs_are_those_of_the_specs() -> None:
    specs = [TensorSpec(name="x", datatype="FP32", shape=[2]), TensorSpec(name="y", datatype="BYTES", shape=[-1])]
    x, y = TensorValue("x", "FP32", (2,), bytes(8)), TensorValue("y", "BYTES", (0,), b"")
    check_inputs([x, y], specs, ["x"])
    check_inputs([x], specs, ["x"])
    wrong = [
        ([y], "^x: the input is missing"), ([x, x], "^x: the input came twice"),
        ([TensorValue("z", "FP32", (2,), bytes(8))], "^z: there is no input .* there is x, y"),
        ([TensorValue("x", "FP16", (2,), bytes(4))], "^x: FP32 is expected, not FP16"),
        ([TensorValue("x", "FP32", (1,), bytes(4))], r"^x: shape \[2\] is expected, not \[1\]"),
    ]  # fmt: skip
    for tensors, text in wrong:
        with pytest.raises(InvalidInput, match=text):
            check_inputs(tensors, specs, ["x"])


def test_elements_of_bytes_are_counted_no_further_than_need_be() -> None:
    """What is made of millions of nothings costs no more than what a shape may say."""
    nothings = bytes(4 * (MAX_BYTES_ELEMENTS + 1))
    for shape in ((MAX_BYTES_ELEMENTS + 1,), (2,)):
        with pytest.raises(InvalidInput, match="elements"):
            check(TensorValue("x", "BYTES", shape, nothings))
    check(TensorValue("x", "BYTES", (MAX_BYTES_ELEMENTS,), nothings[4:]))
