"""Requests and answers as REST has them: JSON, with or without tensors in binary behind it. Pure.

    {"inputs": [{"name", "datatype", "shape", "data": […]}], …}                     nested or flat, row by row
    {"inputs": [{…, "parameters": {"binary_data_size": 12}}], …}<12 bytes>          Inference-Header-Content-Length: of
                                                                                    the JSON in front
Whether an output comes back in binary its own `binary_data` says, else `binary_data_output` of the request. This module
does not know models, except for the two forms of the generate extension, whose inputs a spec describes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from samovar import tensor_codec
from samovar.errors import BadOutput, InvalidInput, RequestError
from samovar.schema import invalid
from samovar.tensor_codec import Contents, TensorValue
from samovar.tensor_plain import flatten, pack, texts, unpack
from samovar.tensors import DATATYPES, TensorSpec, num_elements
from samovar_gateway import large_json
from samovar_gateway.inference.messages import InferAnswer, InferRequest

T = TypeVar("T")
U = TypeVar("U")

BINARY = "binary_data_size"
_NULL = b"null"
_FLOATS = ("FP16", "BF16", "FP32", "FP64")


class _Strict(msgspec.Struct, forbid_unknown_fields=True):
    name: str


class _Input(_Strict):
    datatype: str
    shape: list[int]
    parameters: dict[str, Any] = {}
    data: msgspec.Raw = msgspec.Raw(_NULL)


class _Output(_Strict):
    parameters: dict[str, Any] = {}


class _Request(msgspec.Struct, forbid_unknown_fields=True):
    inputs: list[_Input]
    id: str = ""
    parameters: dict[str, Any] = {}
    outputs: list[_Output] = []


@dataclass(frozen=True, slots=True)
class Wishes:
    """How the answer is to look. id: given back. binary: of outputs by name; is_binary: of those that do not say."""

    id: str = ""
    binary: Mapping[str, bool] = field(default_factory=dict)
    is_binary: bool = False


_request = msgspec.json.Decoder(_Request)


def read(body: bytes, json_length: bytes | None) -> tuple[InferRequest, Wishes]:
    """Return what a body asks for; binary tensors are views on it.

    json_length: the header Inference-Header-Content-Length. Raises: RequestError (400) if it is no request;
    InvalidInput (422) with the name of the tensor that is not as it says.
    """
    view = memoryview(body)
    end = _json_end(json_length, len(view))
    large_json.require_few(body if end == len(view) else bytes(view[:end]))
    request = _decoded(_request.decode, view[:end])
    inputs, position = [], end
    for one in request.inputs:
        size = _binary_size(one)
        if size is None:
            inputs.append(_from_json(one))
        else:
            if size > len(view) - position:
                raise InvalidInput(f"{one.name}: {BINARY} is {size}, more bytes than came", path=one.name)
            inputs.append(TensorValue(one.name, one.datatype, tuple(one.shape), view[position : position + size]))
            position += size
        tensor_codec.check(inputs[-1])
    if position != len(view):
        raise RequestError(f"{len(view) - position} bytes follow the last tensor: Inference-Header-Content-Length?")
    parameters = request.parameters
    is_binary = _flag(parameters.pop("binary_data_output", False), "binary_data_output")
    binary = {one.name: _output_is_binary(one, is_binary) for one in request.outputs}
    return InferRequest(inputs, [*binary], parameters), Wishes(request.id, binary, is_binary)


def write(answer: InferAnswer, model: str, wishes: Wishes) -> tuple[list[Contents], int | None]:
    """Return the body of an answer in parts, and the length of the JSON in front if tensors follow it.

    Raises: BadOutput for what JSON cannot carry.
    """
    outputs, parts = [], []
    for one in answer.outputs:
        head: dict[str, Any] = {"name": one.name, "datatype": one.datatype, "shape": one.shape}
        if wishes.binary.get(one.name, wishes.is_binary):
            head["parameters"] = {BINARY: len(one.data)}
            parts.append(one.data)
        else:
            head["data"] = large_json.write(to_json(one))
        outputs.append(head)
    document: dict[str, Any] = {"model_name": model, "model_version": answer.version, "outputs": outputs}
    if wishes.id:
        document["id"] = wishes.id
    text = msgspec.json.encode(document)
    return [text, *parts], len(text) if parts else None


def read_fields(body: bytes, specs: Sequence[TensorSpec], *, is_batch: bool) -> tuple[InferRequest, Wishes]:
    """Return what a body of the generate extension asks for: inputs by name, each one value or lists of them.

    Of `parameters`, those named like an input are inputs, too. Raises: RequestError, also for one in both places;
    InvalidInput.
    """
    fields = _decoded(large_json.read, body)
    if not isinstance(fields, dict):
        raise RequestError("the body is a JSON object with the inputs by name")
    request_id, parameters = fields.pop("id", ""), fields.pop("parameters", {})
    if not isinstance(request_id, str) or not isinstance(parameters, dict):
        raise RequestError("id is a string, parameters is an object")
    known = {spec.name: spec for spec in specs}
    both = next((name for name in parameters if name in known and name in fields), None)
    if both is not None:
        raise RequestError(f"{both}: it is given twice, on top and within parameters", param=both)
    fields |= {name: parameters.pop(name) for name in [*parameters] if name in known}
    inputs = []
    for name, value in fields.items():
        if name not in known:
            raise InvalidInput(
                f"{name[:100]}: there is no input of this name; there is {', '.join(known)}", path=name[:100]
            )
        inputs.append(_from_field(known[name], value, is_batch=is_batch))
    return InferRequest(inputs, (), parameters), Wishes(request_id)


def write_fields(answer: InferAnswer, model: str, wishes: Wishes) -> bytes:
    """Return an answer of the generate extension: outputs by name, one value or a flat list. Raises: BadOutput."""
    document: dict[str, Any] = {"model_name": model, "model_version": answer.version}
    if wishes.id:
        document["id"] = wishes.id
    for one in answer.outputs:
        flat = to_json(one)
        document[one.name] = flat[0] if len(flat) == 1 else large_json.write(flat)
    return msgspec.json.encode(document)


def to_json(tensor: TensorValue) -> list[Any]:
    """Return a tensor's elements, row by row. Raises: BadOutput for bytes that are no text and numbers not finite."""
    flat = unpack(tensor)
    hint = "JSON cannot carry that; ask for it with binary_data"
    if tensor.datatype == "BYTES":
        try:
            return texts(tensor.name, flat)
        except InvalidInput:
            raise BadOutput(f"the output {tensor.name} is bytes that are no UTF-8: {hint}", path=tensor.name) from None
    if tensor.datatype in _FLOATS and not all(map(math.isfinite, flat)):
        raise BadOutput(f"the output {tensor.name} has a NaN or an infinity: {hint}", path=tensor.name)
    return flat


def _decoded(decode: Callable[[T], U], text: T) -> U:
    try:
        return decode(text)
    except msgspec.ValidationError as error:
        raise invalid(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"the body is not valid JSON: {error}") from None
    except RecursionError:
        raise RequestError("the body is nested too deeply") from None


def _json_end(json_length: bytes | None, num_bytes: int) -> int:
    if json_length is None:
        return num_bytes
    if not json_length.isdigit() or len(json_length) > 18 or int(json_length) > num_bytes:
        raise RequestError("Inference-Header-Content-Length must be the length of the JSON, within that of the body")
    return int(json_length)


def _binary_size(one: _Input) -> int | None:
    """Return how many bytes a tensor has behind the JSON, None if it is within it."""
    for name in one.parameters:
        if name != BINARY:
            raise RequestError(
                f"{one.name}: the parameter {name[:100]!r} of an input is not possible here", param=name[:100]
            )
    size = one.parameters.get(BINARY)
    if size is None:
        return None
    if bytes(one.data) != _NULL:
        raise InvalidInput(f"{one.name}: it has both data and {BINARY}", path=one.name)
    if type(size) is not int or size < 0:
        raise InvalidInput(f"{one.name}: {BINARY} must be a number of bytes", path=one.name)
    return size


def _output_is_binary(one: _Output, default: bool) -> bool:
    for name in one.parameters:
        if name != "binary_data":
            raise RequestError(
                f"{one.name}: the parameter {name[:100]!r} of an output is not possible here", param=name[:100]
            )
    return _flag(one.parameters.get("binary_data", default), "binary_data")


def _flag(value: Any, name: str) -> bool:
    if type(value) is not bool:
        raise RequestError(f"the parameter {name!r} is true or false", param=name)
    return value


def _from_json(one: _Input) -> TensorValue:
    name, data = one.name, _decoded(large_json.read_member, one.data)
    if data is None:
        raise InvalidInput(f"{name}: it has neither data nor {BINARY}", path=name)
    if not isinstance(data, list):
        raise InvalidInput(f"{name}: data is a list", path=name)
    if one.datatype not in DATATYPES:
        raise InvalidInput(f"{name}: there is no datatype {one.datatype[:32]!r}", path=name)
    count = num_elements(one.shape, name)
    if len(one.shape) > 1 and data and isinstance(data[0], list):
        sizes, data = flatten(name, data, len(one.shape))
        if sizes != one.shape:
            raise InvalidInput(f"{name}: data has shape {sizes}, {one.shape} was announced", path=name)
    if len(data) != count:
        raise InvalidInput(f"{name}: {len(data)} elements came, its shape has {count}", path=name)
    return TensorValue(name, one.datatype, tuple(one.shape), pack(name, one.datatype, data))


def _from_field(spec: TensorSpec, value: Any, *, is_batch: bool) -> TensorValue:
    """Return one value, or nested lists, as a tensor: of a batch handler one row."""
    num_dims = len(spec.shape) - is_batch
    if not is_batch and num_dims == 1 and not isinstance(value, list):
        value = [value]
    sizes, flat = flatten(spec.name, value, num_dims)
    shape = (1, *sizes) if is_batch else tuple(sizes)
    return TensorValue(spec.name, spec.datatype, shape, pack(spec.name, spec.datatype, flat))
