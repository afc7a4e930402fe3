"""A handler's types as tensors: read once from its hints, for the manifest and for the instance alike.

| hint                             | tensor
|----------------------------------|-----------------------------------------------------------------------------
| numpy.ndarray, torch.Tensor      | FP32 of any shape; `Annotated[…, sv.Tensor("INT64", [-1, 8])]` says more
| str, a Literal of them; bytes    | BYTES
| bool, int, float                 | BOOL, INT64, FP32; `Annotated[float, sv.Tensor("FP64")]` says otherwise
| list[X], list[list[X]] of these  | the same, with a dimension of any size for each list
| struct, dataclass, TypedDict     | one for each field; those without a form are left out if they may be missing
| X | None; str | others           | X; the text
| any other output                 | one named `output`

A value that is no list has shape [1]; of a batch handler every tensor has the batch dimension in front instead. Floats
are FP32, in which clients expect them, although Python's are wider. This module does not know bodies or arrays.
"""

from __future__ import annotations

import collections.abc
import types
import typing
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import msgspec.inspect

from samovar.authoring import Definition
from samovar.errors import DeployRefused
from samovar.tensors import Tensor, TensorSpec

Kind = Literal["numpy", "torch", "text", "bytes", "bool", "int", "float"]

OUTPUT = "output"
_LISTS = (list, collections.abc.Sequence, collections.abc.MutableSequence)
_PLAIN: dict[Any, Kind] = {str: "text", bytes: "bytes", bool: "bool", int: "int", float: "float"}
_USUAL = {"text": "BYTES", "bytes": "BYTES", "bool": "BOOL", "int": "INT64"}
_INTS = ("UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64")
_FLOATS = ("FP16", "BF16", "FP32", "FP64")
DATATYPES_OF: dict[Kind, tuple[str, ...]] = {
    "numpy": ("BOOL", *_INTS, "FP16", "FP32", "FP64"),
    "torch": ("BOOL", *_INTS, *_FLOATS),
    "text": ("BYTES",),
    "bytes": ("BYTES",),
    "bool": ("BOOL",),
    "int": _INTS,
    "float": _FLOATS,
}
_OBJECTS = (msgspec.inspect.StructType, msgspec.inspect.DataclassType, msgspec.inspect.TypedDictType)


class NoTensors(Exception):
    """These types have no form as tensors; the text says which, and why."""


@dataclass(frozen=True, slots=True)
class FieldForm:
    """One field as a tensor. spec: of one item, without a batch dimension; shape [] for what is no list. depth: of
    nested lists. attribute: what the field is called in Python. required: it may not be missing."""

    spec: TensorSpec
    kind: Kind
    depth: int
    attribute: str
    required: bool


@dataclass(frozen=True, slots=True)
class TensorForm:
    """What a handler takes and gives. is_bare: its answer is the one output itself, no object."""

    inputs: tuple[FieldForm, ...]
    outputs: tuple[FieldForm, ...]
    is_bare: bool


def tensor_form(definition: Definition) -> TensorForm:
    """Return the form. Raises: NoTensors; DeployRefused for an sv.Tensor that does not go with its hint."""
    inputs = _object_fields(definition.input_type, "its input")
    if not inputs:
        raise NoTensors("it takes nothing that has a form as a tensor")
    output = definition.output_type
    if _object_info(output) is not None:
        outputs = _object_fields(output, "its output")
        if not outputs:
            raise NoTensors("it gives nothing that has a form as a tensor")
        return TensorForm(inputs, outputs, is_bare=False)
    return TensorForm(inputs, (_field_form(OUTPUT, OUTPUT, output, required=True),), is_bare=True)


def manifest_specs(definition: Definition) -> tuple[list[TensorSpec], list[TensorSpec], str]:
    """Return inputs and outputs as manifests have them, and "" or, both empty, why there are none."""
    try:
        form = tensor_form(definition)
    except NoTensors as reason:
        return [], [], str(reason)
    is_batch = definition.batch is not None
    return (
        [outer_spec(field.spec, is_batch=is_batch) for field in form.inputs],
        [outer_spec(field.spec, is_batch=is_batch) for field in form.outputs],
        "",
    )


def outer_spec(spec: TensorSpec, *, is_batch: bool) -> TensorSpec:
    """Return the spec of one item as clients see it."""
    shape = [-1, *spec.shape] if is_batch else spec.shape or [1]
    return msgspec.structs.replace(spec, shape=shape)


def _object_fields(hint: Any, whose: str) -> tuple[FieldForm, ...]:
    """Return the forms of the fields of an object, those without one left out if they may be missing."""
    info = _object_info(hint)
    if info is None:
        raise NoTensors(f"{whose} is no object with named fields of known types")
    hints = typing.get_type_hints(info.cls, include_extras=True)
    places = {name: place for place, name in enumerate(hints)}  # msgspec gives those of a TypedDict sorted by name
    forms = []
    for field in sorted(info.fields, key=lambda field: places[field.name]):
        inner = _without_none(_without_presence(hints[field.name]))
        try:
            forms.append(_field_form(field.encode_name, field.name, inner, required=field.required))
        except NoTensors:
            if field.required:
                raise
    return tuple(forms)


def _object_info(hint: Any) -> Any:
    """Return msgspec's view of an object with fields, None if `hint` is none."""
    if typing.get_origin(hint) is typing.Annotated:
        hint = typing.get_args(hint)[0]
    try:
        info = msgspec.inspect.type_info(hint)
    except TypeError:
        return None
    while isinstance(info, msgspec.inspect.Metadata):
        info = info.type
    return info if isinstance(info, _OBJECTS) else None


def _field_form(name: str, attribute: str, hint: Any, *, required: bool) -> FieldForm:
    """Return the form of one field. Raises: NoTensors naming it."""
    inner, declared, depth = _unwrap(hint)
    kind = _kind_of(_without_none(inner))
    if kind is None or (depth and kind in ("numpy", "torch")):
        raise NoTensors(f"{name!r} of type {_told(hint)} has no form as a tensor")
    datatype: Any = declared.datatype if declared is not None else _USUAL.get(kind, "FP32")
    if datatype not in DATATYPES_OF[kind]:
        raise DeployRefused(f"{name}: sv.Tensor({datatype!r}) does not go with the hint {_told(hint)}")
    shape = declared.shape if declared is not None else None
    if kind in ("numpy", "torch"):
        is_open = shape is None
        spec = TensorSpec(name=name, datatype=datatype, shape=[-1] if shape is None else shape, any_rank=is_open)
        return FieldForm(spec, kind, 0, attribute, required)
    if shape is not None and len(shape) != depth:
        raise DeployRefused(f"{name}: the shape {shape} of sv.Tensor does not go with {depth} nested lists")
    spec = TensorSpec(name=name, datatype=datatype, shape=[-1] * depth if shape is None else shape)
    return FieldForm(spec, kind, depth, attribute, required)


def _unwrap(hint: Any) -> tuple[Any, Tensor | None, int]:
    """Return what is inside of `Annotated` and lists, the sv.Tensor on the way, and how many lists there were."""
    declared, depth = None, 0
    while True:
        origin = typing.get_origin(hint)
        if origin is typing.Annotated:
            hint, *notes = typing.get_args(hint)
            declared = declared or next((note for note in notes if isinstance(note, Tensor)), None)
        elif origin in _LISTS:
            hint, depth = typing.get_args(hint)[0], depth + 1
        else:
            return hint, declared, depth


def _kind_of(hint: Any) -> Kind | None:
    if typing.get_origin(hint) is typing.Literal:
        return "text" if all(isinstance(value, str) for value in typing.get_args(hint)) else None
    if isinstance(hint, type):
        library: dict[Any, Kind] = {("numpy", "ndarray"): "numpy", ("torch", "Tensor"): "torch"}
        return library.get((hint.__module__, hint.__name__)) or _PLAIN.get(hint)
    return None


def _without_presence(hint: Any) -> Any:
    """Return `hint` without NotRequired, Required or ReadOnly around it."""
    return typing.get_args(hint)[0] if typing.get_origin(hint) in (typing.NotRequired, typing.Required) else hint


def _without_none(hint: Any) -> Any:
    """Return `hint` without the None of `X | None`; of several others the text, else the first."""
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint
    members = [member for member in typing.get_args(hint) if member is not types.NoneType]
    return str if str in members else members[0]


def _told(hint: Any) -> str:
    return getattr(hint, "__name__", None) if isinstance(hint, type) else str(hint)  # type: ignore[return-value]
