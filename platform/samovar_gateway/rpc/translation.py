"""Requests and answers of inference as messages of gRPC, and back. Pure.

Contents come raw, one field of bytes for each input in order, or typed, in the field of their datatype; a request has
the one or the other. Answers are raw. This module does not know models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError

from samovar import tensor_codec
from samovar.errors import InvalidInput, RequestError, SamovarError
from samovar.tensor_codec import Contents, TensorValue
from samovar.tensor_plain import pack
from samovar.tensors import DATATYPES
from samovar_gateway.inference.messages import InferAnswer, InferRequest
from samovar_gateway.rpc import peeling, schema

_RAW_INPUTS, _RAW_OUTPUTS, _INFER_RESPONSE = 7, 6, 2  # numbers of fields
_Request, _Response = schema.message("ModelInferRequest"), schema.message("ModelInferResponse")
_StreamResponse = schema.message("ModelStreamInferResponse")

WANTS_END = "triton_enable_empty_final_response"
FINAL = "triton_final_response"

# FP16 and BF16 have no field: they come raw
_TYPED = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Received:
    """A request as it came: `message` without raw contents, and those as views on what came. num_bytes: of it all."""

    message: Any
    raw: Sequence[Contents]
    num_bytes: int

    @property
    def model(self) -> str:
        """The function's name."""
        return str(self.message.model_name)

    @property
    def version(self) -> str:
        """Of the model; "" = whichever the route gives."""
        return str(self.message.model_version)

    @property
    def id(self) -> str:
        """Given back with the answer."""
        return str(self.message.id)


def parse(name: str, message: bytes) -> Any:
    """Return the message of a type. Raises: RequestError if the bytes are none."""
    return _parsed(schema.message(name), message)


def receive(message: bytes) -> Received:
    """Return a ModelInferRequest. Raises: RequestError if the bytes are none."""
    rest, raw = peeling.peel(message, _RAW_INPUTS)
    return Received(_parsed(_Request, rest), raw, len(message))


def wants_end(received: Received) -> bool:
    """Return whether the client wants an empty answer after a stream's last. Raises: RequestError."""
    wanted = _parameters(received.message.parameters).get(WANTS_END, False)
    if type(wanted) is not bool:
        raise RequestError(f"the parameter {WANTS_END!r} is true or false", param=WANTS_END)
    return wanted


def to_request(received: Received) -> InferRequest:
    """Return what a message asks for. Raises: RequestError for parameters that mean nothing; InvalidInput with the name
    of the tensor that is not as it says."""
    message, raw = received.message, received.raw
    parameters = _parameters(message.parameters)
    parameters.pop(WANTS_END, None)
    for one in (*message.inputs, *message.outputs):
        for parameter in one.parameters:
            told = f"{one.name}: the parameter {parameter[:100]!r} of a tensor is not possible here"
            raise RequestError(told, param=parameter[:100])
    inputs = _raw(message.inputs, raw) if raw else [_typed(one) for one in message.inputs]
    for tensor in inputs:
        tensor_codec.check(tensor)
    return InferRequest(inputs, [one.name for one in message.outputs], parameters)


def to_message(answer: InferAnswer, model: str, request_id: str) -> bytes:
    """Return a ModelInferResponse: one copy of the outputs' contents."""
    return b"".join(_response(answer, model, request_id, {}))


def to_stream_message(answer: InferAnswer, model: str, request_id: str, *, is_final: bool) -> bytes:
    """Return a ModelStreamInferResponse with an answer in it. is_final: nothing more comes for its request."""
    parts = _response(answer, model, request_id, {FINAL: is_final})
    return b"".join([peeling.field(_INFER_RESPONSE, sum(map(len, parts))), *parts])


def stream_error(error: SamovarError, model: str, request_id: str) -> bytes:
    """Return a ModelStreamInferResponse that says what became of one request; parameters of it say what trailing
    metadata would."""
    response = _Response(model_name=model, id=request_id)
    response.parameters[FINAL].bool_param = True
    response.parameters["samovar-code"].string_param = error.code
    if error.retry_after_s is not None:
        response.parameters["retry-after"].double_param = error.retry_after_s
    encoded: bytes = _StreamResponse(error_message=error.detail, infer_response=response).SerializeToString()
    return encoded


def _response(answer: InferAnswer, model: str, request_id: str, flags: Mapping[str, bool]) -> list[Contents]:
    outputs = [{"name": one.name, "datatype": one.datatype, "shape": one.shape} for one in answer.outputs]
    message = _Response(model_name=model, model_version=answer.version, id=request_id, outputs=outputs)
    for name, value in flags.items():
        message.parameters[name].bool_param = value
    return peeling.behind(message.SerializeToString(), _RAW_OUTPUTS, [one.data for one in answer.outputs])


def _parsed(cls: Any, message: bytes) -> Any:
    try:
        return cls.FromString(message)
    except DecodeError as error:
        raise RequestError(f"this is no message of the Open Inference Protocol: {error}") from None


def _parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _value(name, one) for name, one in sorted(given.items())}


def _value(name: str, parameter: Any) -> Any:
    choice = parameter.WhichOneof("parameter_choice")
    if choice is None:
        raise RequestError(f"the parameter {name[:100]!r} has no value", param=name[:100])
    return getattr(parameter, choice)


def _raw(inputs: Sequence[Any], raw: Sequence[Contents]) -> list[TensorValue]:
    if len(inputs) != len(raw):
        told = f"$: {len(raw)} raw_input_contents came for {len(inputs)} inputs; each has one, in order"
        raise InvalidInput(told, path="$")
    for one in inputs:
        if one.HasField("contents"):
            told = f"{one.name}: it has contents, and there are raw_input_contents: send the one or the other"
            raise InvalidInput(told, path=one.name)
    return [TensorValue(one.name, one.datatype, tuple(one.shape), data) for one, data in zip(inputs, raw, strict=True)]


def _typed(one: Any) -> TensorValue:
    name, datatype = one.name, one.datatype
    if datatype not in DATATYPES:
        raise InvalidInput(f"{name}: there is no datatype {datatype[:32]!r}", path=name)
    given = one.contents.ListFields()
    expected = _TYPED.get(datatype)
    for field, _ in given:
        if field.name != expected:
            told = f"{name}: {datatype} comes in {expected or 'raw_input_contents'}, not in {field.name}"
            raise InvalidInput(told, path=name)
    flat = list(given[0][1]) if given else []
    return TensorValue(name, datatype, tuple(one.shape), pack(name, datatype, flat))
