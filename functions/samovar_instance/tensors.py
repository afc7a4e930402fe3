"""Between tensors of the wire and a handler's values: the counterpart of `samovar.schema` for bodies of tensors.

    numpy.ndarray   a view on the body: no copy, read-only. A handler that writes into it makes its own (`x.copy()`)
    torch.Tensor    a view on the body, on the CPU: no copy; torch knows no read-only, the body is this call's alone
    str, numbers    plain Python, validated as JSON's are

Answers may be arrays of either library or plain Python, whatever the hint says; numbers are cast to the declared
datatype within their kind. numpy and torch are imported when they are needed. This module does not know frames.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import msgspec

from samovar import tensor_codec
from samovar.authoring import Definition
from samovar.errors import BadOutput, InvalidInput, RequestError
from samovar.schema import invalid
from samovar.signature_tensors import FieldForm, NoTensors, TensorForm, outer_spec, tensor_form
from samovar.tensor_codec import Contents, TensorValue
from samovar.tensor_plain import flatten, nest, pack, texts, unpack
from samovar.tensors import TensorSpec, fits

NUMPY_TYPES = {
    "BOOL": "?", "UINT8": "u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8", "INT8": "i1", "INT16": "<i2",
    "INT32": "<i4", "INT64": "<i8", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8",
}  # fmt: skip
TORCH_TYPES = {
    "BOOL": "bool", "UINT8": "uint8", "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64", "INT8": "int8",
    "INT16": "int16", "INT32": "int32", "INT64": "int64", "FP16": "float16", "BF16": "bfloat16", "FP32": "float32",
    "FP64": "float64",
}  # fmt: skip


class Tensors:
    """Decodes and encodes the tensors of one version. Made when the first call with tensors comes.

    item: the value of one item of a batch handler, from what the body is decoded to; None if that is the value itself.
    """

    def __init__(self, definition: Definition, item: Callable[[Any], Any] | None) -> None:
        """Prepare. Raises: RequestError if the version's types are no tensors."""
        try:
            form: TensorForm = tensor_form(definition)
        except NoTensors as reason:
            raise RequestError(f"{definition.name} cannot be asked by tensors: {reason}") from None
        self._item = item
        self._type = definition.input_type
        self._is_bare = form.is_bare
        self._inputs = {field.spec.name: field for field in form.inputs}
        self._outputs = [(field, _spec(field, definition)) for field in form.outputs]
        self._specs = [_spec(field, definition) for field in form.inputs]
        self._ranks = {spec.name: None if spec.any_rank else len(spec.shape) for spec in self._specs}
        self._required = [field.spec.name for field in form.inputs if field.required]
        # the body is this call's alone: nobody else sees what a handler writes into it
        warnings.filterwarnings("ignore", message="The given buffer is not writable")

    def decode(self, body: bytes) -> Any:
        """Return the value of a body, as `schema.Input.decode` does. Raises: InvalidInput naming the tensor."""
        tensors = tensor_codec.decode(body)
        tensor_codec.check_inputs(tensors, self._specs, self._required)
        fields = {tensor.name: self._value(tensor) for tensor in tensors}
        try:
            value = msgspec.convert(fields, self._type, dec_hook=_as_it_is)
        except msgspec.ValidationError as error:
            raise invalid(str(error)) from None
        return value if self._item is None else self._item(value)

    def encode(self, output: Any) -> bytes:
        """Return the body of an answer. Raises: BadOutput naming the tensor that is not as declared."""
        tensors = []
        for field, spec in self._outputs:
            value = output if self._is_bare else _of(output, field)
            if value is not None:
                tensors.append(_tensor(value, field, spec))
            elif field.required:
                raise BadOutput(f"{field.spec.name}: the function's output lacks it", path=field.spec.name)
        return tensor_codec.encode(tensors)

    def _value(self, tensor: TensorValue) -> Any:
        field, rank = self._inputs[tensor.name], self._ranks[tensor.name]
        if field.kind == "numpy":
            return numpy_view(tensor.datatype, tensor.shape[:rank], tensor.data)
        if field.kind == "torch":
            return torch_view(tensor.datatype, tensor.shape[:rank], tensor.data)
        flat = unpack(tensor)
        if field.kind == "text":
            flat = texts(tensor.name, flat)
        return nest(flat, tensor.shape[: field.depth])


def numpy_view(datatype: str, shape: tuple[int, ...], data: Contents) -> Any:
    """Return a read-only array of `shape` on contents that were checked."""
    import numpy

    return numpy.frombuffer(data, NUMPY_TYPES[datatype]).reshape(shape)


def torch_view(datatype: str, shape: tuple[int, ...], data: Contents) -> Any:
    """Return a tensor of `shape` on contents that were checked."""
    import torch

    kind = getattr(torch, TORCH_TYPES[datatype])
    return torch.frombuffer(data, dtype=kind).reshape(shape) if len(data) else torch.empty(shape, dtype=kind)


def _spec(field: FieldForm, definition: Definition) -> TensorSpec:
    """Return what one item's tensor is to be in a body: of a batch handler without the batch dimension."""
    return field.spec if definition.batch is not None else outer_spec(field.spec, is_batch=False)


def _as_it_is(kind: type, value: Any) -> Any:
    """Arrays are what the hint asks for already."""
    return value


def _of(output: Any, field: FieldForm) -> Any:
    return output.get(field.spec.name) if isinstance(output, dict) else getattr(output, field.attribute, None)


def _tensor(value: Any, field: FieldForm, spec: TensorSpec) -> TensorValue:
    """Return one output. Raises: BadOutput."""
    name, datatype = spec.name, spec.datatype
    library = type(value).__module__.partition(".")[0]
    try:
        if datatype != "BYTES" and library == "torch":
            shape, data = _from_torch(value, name, datatype)
        elif datatype not in ("BYTES", "BF16") and library == "numpy":
            shape, data = _from_numpy(value, name, datatype)
        else:
            plain = value.tolist() if hasattr(value, "tolist") else value
            sizes, flat = flatten(name, plain, field.depth if field.kind not in ("numpy", "torch") else _depth(plain))
            shape, data = tuple(sizes), pack(name, datatype, flat)
    except InvalidInput as error:
        raise BadOutput(f"the function's output {error.detail}", path=name) from None
    if not shape and spec.shape == [1]:
        shape = (1,)
    if not fits(shape, spec):
        told = f"{tensor_codec.told_shape(spec)} is declared, not {list(shape)}"
        raise BadOutput(f"the function's output {name}: shape {told}", path=name)
    return TensorValue(name, datatype, shape, data)


def _from_numpy(value: Any, name: str, datatype: str) -> tuple[tuple[int, ...], Contents]:
    import numpy

    array = numpy.asarray(value)
    wanted = numpy.dtype(NUMPY_TYPES[datatype])
    if not numpy.can_cast(array.dtype, wanted, "same_kind"):
        raise InvalidInput(f"{name}: {datatype} is declared, not numpy's {array.dtype}", path=name)
    contiguous = numpy.ascontiguousarray(array, wanted)
    return array.shape, contiguous.reshape(-1).view(numpy.uint8).data


def _from_torch(value: Any, name: str, datatype: str) -> tuple[tuple[int, ...], Contents]:
    import torch

    wanted = getattr(torch, TORCH_TYPES[datatype])
    if value.dtype != wanted and not torch.can_cast(value.dtype, wanted):
        raise InvalidInput(f"{name}: {datatype} is declared, not {value.dtype}", path=name)
    flat = value.detach().to("cpu", wanted).contiguous().reshape(-1)
    return tuple(value.shape), flat.view(torch.uint8).numpy().data


def _depth(plain: Any) -> int:
    """Return how deep the first element of nested lists lies."""
    depth = 0
    while isinstance(plain, list | tuple):
        depth += 1
        if not plain:
            break
        plain = plain[0]
    return depth
