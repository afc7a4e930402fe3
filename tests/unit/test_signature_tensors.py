"""Which tensors a handler's hints are, which they are not, and what a version says of itself as a model."""

# mypy: disable-error-code=empty-body

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec
import numpy as np
import pytest

import samovar as sv
from samovar.authoring import Definition, definition_of, is_function
from samovar.errors import BadOutput, DeployRefused, InvalidInput, RequestError
from samovar.signature_tensors import manifest_specs
from samovar.spec import BlobRef, Manifest
from samovar.tasks.generation import GenerationInput, GenerationOutput
from samovar.tensor_codec import TensorValue, decode, encode
from samovar.tensor_plain import pack, unpack
from samovar_gateway.inference import models, rows
from samovar_gateway.inference.messages import InferRequest
from samovar_instance.tensors import Tensors

Shown = list[tuple[str, str, list[int]]]


class Fields(TypedDict):
    b: int
    a: NotRequired[dict[str, int]]


class Item(msgspec.Struct, rename={"kind": "type"}):
    kind: str
    tags: list[str] = []


@dataclass
class Point:
    x: float
    y: float | None = None


def define(handler: Any, **options: Any) -> Definition:
    return definition_of(handler if is_function(handler) else sv.function(**options)(handler))


def shown(handler: Any, **options: Any) -> tuple[Shown, Shown, str]:
    inputs, outputs, why = manifest_specs(define(handler, **options))
    return *([(spec.name, spec.datatype, spec.shape) for spec in specs] for specs in (inputs, outputs)), why  # type: ignore[return-value]


def arrays(x: np.ndarray, y: Annotated[np.ndarray, sv.Tensor("INT64", [-1, 8])]) -> np.ndarray: ...
def numbers(a: bool, b: int, c: float, d: Annotated[float, sv.Tensor("FP64")]) -> float: ...
def words(a: str, b: bytes, c: Literal["x", "y"], d: str | None = None) -> str: ...
def lists(a: list[int], b: list[list[str]], c: Annotated[list[float], sv.Tensor("FP16", [3])]) -> list[bool]: ...
def fields(item: Item) -> Fields: ...
def points(point: Point) -> Point: ...
def batched(text: list[str]) -> list[Annotated[np.ndarray, sv.Tensor("FP32", [384])]]: ...
def items(items: list[Item]) -> list[Point | Exception]: ...
async def generates(request: GenerationInput, ctx: sv.Context) -> AsyncIterator[GenerationOutput]:
    yield GenerationOutput()


HINTS: list[tuple[Any, dict[str, Any], Shown, Shown]] = [
    (arrays, {}, [("x", "FP32", [-1]), ("y", "INT64", [-1, 8])], [("output", "FP32", [-1])]),
    (numbers, {}, [("a", "BOOL", [1]), ("b", "INT64", [1]), ("c", "FP32", [1]), ("d", "FP64", [1])],
     [("output", "FP32", [1])]),
    (words, {}, [(name, "BYTES", [1]) for name in "abcd"], [("output", "BYTES", [1])]),
    (lists, {}, [("a", "INT64", [-1]), ("b", "BYTES", [-1, -1]), ("c", "FP16", [3])], [("output", "BOOL", [-1])]),
    (fields, {}, [("type", "BYTES", [1]), ("tags", "BYTES", [-1])], [("b", "INT64", [1])]),
    (points, {}, [("x", "FP32", [1]), ("y", "FP32", [1])], [("x", "FP32", [1]), ("y", "FP32", [1])]),
    (batched, {"batch": sv.Batch()}, [("text", "BYTES", [-1])], [("output", "FP32", [-1, 384])]),
    (items, {"batch": sv.Batch()}, [("type", "BYTES", [-1]), ("tags", "BYTES", [-1, -1])],
     [("x", "FP32", [-1]), ("y", "FP32", [-1])]),
]  # fmt: skip


@pytest.mark.parametrize(("handler", "options", "inputs", "outputs"), HINTS)
def test_hints_are_tensors(handler: Any, options: dict[str, Any], inputs: Shown, outputs: Shown) -> None:
    assert shown(handler, **options) == (inputs, outputs, "")


def test_generating_functions_have_those_fields_that_are_tensors() -> None:
    inputs, outputs, _ = shown(generates)
    assert {("prompt", "BYTES", (1,)), ("max_tokens", "INT64", (1,)), ("stop", "BYTES", (-1,))} <= {
        (name, datatype, tuple(shape)) for name, datatype, shape in inputs
    }
    assert [name for name, _, _ in outputs] == ["index", "text", "finish_reason"]


def no_fields(value: dict[str, int]) -> int: ...
def nothing() -> int: ...
def mapping(x: int) -> dict[str, int]: ...
def unsaid(x: int): ...  # type: ignore[no-untyped-def]
def needs(x: int, more: dict[str, int]) -> int: ...
def array_lists(x: list[np.ndarray]) -> int: ...


@pytest.mark.parametrize(
    ("handler", "why"),
    [(no_fields, "no object with named fields"), (nothing, "takes nothing"), (mapping, "'output' of type dict"),
     (unsaid, "'output'"), (needs, "'more' of type dict"), (array_lists, "'x' of type list")],
)  # fmt: skip
def test_types_without_a_form(handler: Any, why: str) -> None:
    inputs, outputs, reason = shown(handler)
    assert (inputs, outputs) == ([], []) and why in reason
    with pytest.raises(RequestError, match="cannot be asked by tensors"):
        Tensors(define(handler), None)


def wrong_kind(x: Annotated[str, sv.Tensor("FP32")]) -> int: ...
def wrong_rank(x: Annotated[list[float], sv.Tensor("FP32", [2, 2])]) -> int: ...
def no_bfloat16(x: Annotated[np.ndarray, sv.Tensor("BF16")]) -> int: ...


@pytest.mark.parametrize("handler", [wrong_kind, wrong_rank, no_bfloat16])
def test_declarations_that_do_not_go_with_their_hint(handler: Any) -> None:
    with pytest.raises(DeployRefused, match=r"sv\.Tensor"):
        shown(handler)


@pytest.mark.parametrize("wrong", [("FP8",), ("FP32", [-2]), ("FP32", 3), ("FP32", ["a"]), ("FP32", [True])])
def test_declarations_that_are_none(wrong: Any) -> None:
    with pytest.raises(DeployRefused, match=r"sv\.Tensor"):
        sv.Tensor(*wrong)


# ---- the instance's side


def tensors_of(handler: Any, **options: Any) -> Tensors:
    return Tensors(define(handler, **options), None)


def value(name: str, datatype: str, flat: list[Any], *shape: int) -> TensorValue:
    return TensorValue(name, datatype, shape, pack(name, datatype, flat))


def test_values_are_plain_where_hints_are() -> None:
    given = [value("a", "INT64", [1, 2], 2), value("b", "BYTES", ["x", "y"], 2, 1), value("c", "FP16", [0.5] * 3, 3)]
    found = tensors_of(lists).decode(encode(given))
    assert (found.a, found.b, found.c) == ([1, 2], [["x"], ["y"]], [0.5] * 3)
    point = tensors_of(points).decode(encode([value("x", "FP32", [1.5], 1)]))
    assert point == Point(1.5)


class Bounded(msgspec.Struct):
    n: Annotated[int, msgspec.Meta(ge=1)]
    mode: Literal["a", "b"] = "a"


def bounded(value: Bounded) -> int: ...


def test_values_are_validated_as_json_is() -> None:
    with pytest.raises(InvalidInput, match=r"\$\.n") as caught:
        tensors_of(bounded).decode(encode([value("n", "INT64", [0], 1)]))
    assert caught.value.extra["path"] == "$.n"
    with pytest.raises(InvalidInput, match=r"\$\.mode"):
        tensors_of(bounded).decode(encode([value("n", "INT64", [1], 1), value("mode", "BYTES", ["c"], 1)]))


def test_arrays_are_views_on_the_body() -> None:
    body = encode([value("x", "FP32", [1, 2, 3], 3), value("y", "INT64", [0] * 8, 1, 8)])
    found = tensors_of(arrays).decode(body)
    assert not found.x.flags.writeable and np.shares_memory(found.x, np.frombuffer(body, "u1"))
    assert found.y.shape == (1, 8) and found.x.tolist() == [1, 2, 3]


def outputs(handler: Any, output: Any) -> Any:
    return [(one.datatype, one.shape, unpack(one)) for one in decode(tensors_of(handler).encode(output))]


@pytest.mark.parametrize(
    ("output", "shape", "flat"),
    [(np.arange(4).reshape(2, 2), (2, 2), [0, 1, 2, 3]), (np.float64(1.5), (), [1.5]), ([[1, 2]], (1, 2), [1, 2]),
     (np.arange(6.0).reshape(2, 3).T, (3, 2), [0, 3, 1, 4, 2, 5]), (np.zeros((0, 3)), (0, 3), [])],
)  # fmt: skip
def test_outputs_may_be_arrays_or_lists(output: Any, shape: tuple[int, ...], flat: list[float]) -> None:
    assert outputs(arrays, output) == [("FP32", shape, flat)]


def test_outputs_of_plain_hints_may_be_arrays() -> None:
    assert outputs(lists, np.array([True, False])) == [("BOOL", (2,), [True, False])]
    assert outputs(words, "tea") == [("BYTES", (1,), [b"tea"])]
    assert outputs(points, {"x": 1, "y": None}) == [("FP32", (1,), [1.0])]


@pytest.mark.parametrize(
    ("handler", "output", "text"),
    [(arrays, np.array(["a"]), "FP32 is declared"), (lists, [1.5], "output: '1.5'|no element|BOOL"),
     (words, 7, "neither text nor bytes"), (numbers, "x", "FP32"), (points, {"y": 1.0}, "x: .* lacks it"),
     (lists, [[True]], "BOOL"), (numbers, [1.0, 2.0], "FP32"), (arrays, object(), "FP32")],
)  # fmt: skip
def test_outputs_that_are_not_as_declared(handler: Any, output: Any, text: str) -> None:
    with pytest.raises(BadOutput, match=text):
        tensors_of(handler).encode(output)


# ---- the gateway's side


def test_rows_are_split_and_stacked() -> None:
    inputs = [value("text", "BYTES", ["a", "b", "c", "d"], 2, 2), value("mask", "INT64", [1, 2], 2)]
    count = rows.num_rows(inputs)
    found = rows.split(inputs, count)
    assert [[(one.name, one.shape, unpack(one)) for one in row] for row in found] == [
        [("text", (2,), [b"a", b"b"]), ("mask", (), [1])],
        [("text", (2,), [b"c", b"d"]), ("mask", (), [2])],
    ]
    assert [(one.shape, unpack(one)) for one in rows.stack(found)] == [
        ((2, 2), [b"a", b"b", b"c", b"d"]),
        ((2,), [1, 2]),
    ]


def test_rows_that_do_not_agree() -> None:
    two, three = value("a", "INT64", [1, 2], 2), value("b", "INT64", [1, 2, 3], 3)
    for wrong, text in [([two, three], "^b: 3 rows came, a has 2"), ([value("a", "INT64", [], 0)], "^a: 0 rows"),
                        ([value("a", "INT64", [1])], "no batch dimension"), ([], "at least one input"),
                        ([value("a", "BOOL", [True] * 5000, 5000)], "5000 rows")]:  # fmt: skip
        with pytest.raises(InvalidInput, match=text):
            rows.num_rows(wrong)
    with pytest.raises(BadOutput, match="a of row 1 is INT64"):
        rows.stack([[two], [value("a", "INT64", [1], 1)]])
    with pytest.raises(BadOutput, match="same outputs"):
        rows.stack([[two], [two, three]])


def manifest(handler: Any, **options: Any) -> Manifest:
    definition = define(handler, **options)
    inputs, outputs, why = manifest_specs(definition)
    code = BlobRef(sha256="", size_bytes=0)
    return Manifest(
        name="m", version=3, entry="app:f", kind="function", handler="sync", code=code, inputs=inputs, outputs=outputs,
        no_tensors=why, batch=definition.batch.spec if definition.batch else None,
    )  # fmt: skip


def test_a_value_may_stand_in_for_an_answer() -> None:
    (output,) = models.from_plain([1.0] * 384, manifest(batched, batch=sv.Batch()))
    assert (output.name, output.shape) == ("output", (384,))
    (x,) = models.from_plain({"x": 2}, manifest(points))
    assert (x.shape, unpack(x)) == ((1,), [2.0])
    with pytest.raises(InvalidInput):
        models.from_plain({"x": "tea"}, manifest(points))


def test_models_say_what_they_are() -> None:
    found = models.model_metadata(manifest(batched, batch=sv.Batch()), [12, 3])
    assert found["versions"] == ["3", "12"]
    assert found["outputs"] == [{"name": "output", "datatype": "FP32", "shape": [-1, 384]}]
    assert models.index_entry(manifest(mapping))["state"] == "UNAVAILABLE"
    with pytest.raises(RequestError, match="'output' of type dict"):
        models.require_tensors(manifest(mapping))


@pytest.mark.parametrize(
    ("parameters", "wanted"),
    [({}, None), ({"timeout": 0}, None), ({"timeout": 1_500_000}, 1.5), ({"timeout": -1}, RequestError),
     ({"timeout": 1 << 62}, (1 << 62) / 1e6), ({"timeout": 10**4000}, RequestError),
     ({"timeout": "1"}, RequestError), ({"sequence_id": 1}, RequestError), ({"tea": 1}, RequestError)],
)  # fmt: skip
def test_parameters_are_honoured_or_refused(parameters: dict[str, Any], wanted: Any) -> None:
    request = InferRequest([], (), parameters)
    if wanted is RequestError:
        with pytest.raises(RequestError):
            request.timeout_s()
    else:
        assert request.timeout_s() == wanted
