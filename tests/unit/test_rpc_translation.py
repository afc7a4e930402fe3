"""Messages of gRPC: what clients register them as, cutting tensors out of them, and reading what is left."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2, service_pb2
from tritonclient.grpc._utils import _get_inference_request

from samovar.errors import FunctionRaised, InvalidInput, QueueFull, RequestError
from samovar.tensor_codec import TensorValue
from samovar_gateway.inference.messages import InferAnswer
from samovar_gateway.rpc import peeling, schema, translation

Request, Response = schema.message("ModelInferRequest"), schema.message("ModelInferResponse")


def their_message(name: str) -> Any:
    """Return tritonclient's descriptor of a message."""
    for module in (service_pb2, model_config_pb2):
        if name in module.DESCRIPTOR.message_types_by_name:
            return module.DESCRIPTOR.message_types_by_name[name]
    raise AssertionError(f"tritonclient has no {name}")


def shape_of(field: Any) -> tuple[Any, ...]:
    """Return what of a field is on the wire."""
    named = field.message_type or field.enum_type
    return field.number, field.name, field.type, field.is_repeated, named.full_name if named else None


def check_message(ours: Any, theirs: Any) -> None:
    known = {field.number: shape_of(field) for field in theirs.fields}
    for field in ours.fields:
        assert shape_of(field) == known.get(field.number), f"{ours.full_name}.{field.name}"
    for nested in ours.nested_types:
        check_message(nested, theirs.nested_types_by_name[nested.name])


def test_every_message_is_on_the_wire_as_tritonclient_has_it() -> None:
    file = schema.POOL.FindFileByName(schema.SOURCE)
    for name, message in file.message_types_by_name.items():
        check_message(message, their_message(name))
    theirs = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    for method in file.services_by_name["GRPCInferenceService"].methods:
        other = theirs.methods_by_name[method.name]
        ours = (method.input_type.name, method.output_type.name, method.client_streaming, method.server_streaming)
        assert ours == (other.input_type.name, other.output_type.name, other.client_streaming, other.server_streaming)
    types = file.enum_types_by_name["DataType"].values_by_name
    known = model_config_pb2.DESCRIPTOR.enum_types_by_name["DataType"].values_by_name
    assert {name: one.number for name, one in types.items()} == {name: one.number for name, one in known.items()}


@pytest.mark.skipif(importlib.util.find_spec("grpc_tools") is None, reason="grpcio-tools is not installed")
def test_what_is_compiled_is_of_this_source(tmp_path: Path) -> None:
    folder = Path(schema.__file__).parent
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", f"--descriptor_set_out={tmp_path / 'set'}"]
    subprocess.run([*command, str(folder / schema.SOURCE)], check=True)
    assert (tmp_path / "set").read_bytes() == (folder / schema.COMPILED).read_bytes(), "run `make proto`"


@given(st.lists(st.binary(max_size=300)), st.text(max_size=20), st.lists(st.integers(0, 2**40)))
def test_peeling_takes_out_one_field_and_leaves_the_rest(raw: list[bytes], name: str, shape: list[int]) -> None:
    message = Request(model_name=name, id="7", inputs=[{"name": "x", "shape": shape}], raw_input_contents=raw)
    rest, peeled = peeling.peel(message.SerializeToString(), 7)
    assert [bytes(one) for one in peeled] == raw
    message.ClearField("raw_input_contents")
    assert Request.FromString(rest) == message


@given(st.binary(max_size=200))
def test_whatever_comes_is_peeled_or_refused(data: bytes) -> None:
    try:
        rest, peeled = peeling.peel(data, 7)
    except RequestError:
        return
    assert len(rest) + sum(map(len, peeled)) <= len(data)


@given(st.lists(st.binary(max_size=300)))
def test_what_is_put_behind_a_message_is_part_of_it(contents: list[bytes]) -> None:
    parts = peeling.behind(Response(id="7").SerializeToString(), 6, contents)
    found = Response.FromString(b"".join(parts))
    assert (found.id, list(found.raw_output_contents)) == ("7", contents)


def test_what_tritonclient_makes_is_read_without_copying_tensors() -> None:
    array = np.arange(6, dtype="f4").reshape(2, 3)
    tensor = triton.InferInput("x", [2, 3], "FP32").set_data_from_numpy(array)
    asked = _get_inference_request(
        model_name="m",
        inputs=[tensor],
        model_version="3",
        request_id="id-7",
        outputs=[triton.InferRequestedOutput("y")],
        sequence_id=0,
        sequence_start=False,
        sequence_end=False,
        priority=0,
        timeout=250,
        parameters=None,
    )
    message = asked.SerializeToString()
    received = translation.receive(message)
    request = translation.to_request(received)
    assert (received.model, received.version, received.id) == ("m", "3", "id-7")
    assert (request.outputs, request.timeout_s()) == (["y"], 0.00025)
    (found,) = request.inputs
    assert found.shape == (2, 3) and isinstance(found.data, memoryview) and found.data.obj is message
    assert np.array_equal(np.frombuffer(found.data, "f4").reshape(found.shape), array)


TYPED = [
    ("BOOL", "bool_contents", [True, False], "?"),
    ("INT8", "int_contents", [-128, 127], "i1"),
    ("INT16", "int_contents", [-(2**15), 7], "i2"),
    ("INT32", "int_contents", [-(2**31), 7], "i4"),
    ("INT64", "int64_contents", [-(2**63), 7], "i8"),
    ("UINT8", "uint_contents", [0, 255], "u1"),
    ("UINT16", "uint_contents", [0, 2**16 - 1], "u2"),
    ("UINT32", "uint_contents", [0, 2**32 - 1], "u4"),
    ("UINT64", "uint64_contents", [0, 2**64 - 1], "u8"),
    ("FP32", "fp32_contents", [0.5, -1.0], "f4"),
    ("FP64", "fp64_contents", [0.1, 1e300], "f8"),
]


def one_input(**fields: Any) -> translation.Received:
    return translation.receive(Request(inputs=[{"name": "x", "shape": [2]} | fields]).SerializeToString())


@pytest.mark.parametrize(("datatype", "field", "values", "dtype"), TYPED, ids=[row[0] for row in TYPED])
def test_typed_contents(datatype: str, field: str, values: list[Any], dtype: str) -> None:
    (found,) = translation.to_request(one_input(datatype=datatype, contents={field: values})).inputs
    assert np.frombuffer(found.data, dtype).tolist() == np.array(values, dtype).tolist()


def test_typed_bytes_and_empty_tensors() -> None:
    (found,) = translation.to_request(one_input(datatype="BYTES", contents={"bytes_contents": [b"a", b""]})).inputs
    assert bytes(found.data) == b"\x01\0\0\0a\0\0\0\0"
    (empty,) = translation.to_request(one_input(datatype="FP32", shape=[0, 4])).inputs
    assert (empty.shape, bytes(empty.data)) == ((0, 4), b"")


FP32 = {"name": "x", "datatype": "FP32", "shape": [2]}
BAD: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("no contents", {"inputs": [FP32]}, InvalidInput, "^x: 0 bytes came"),
    ("wrong field", {"inputs": [FP32 | {"contents": {"int_contents": [1, 2]}}]}, InvalidInput, "in fp32_contents, not"),
    (
        "two fields",
        {"inputs": [FP32 | {"contents": {"fp32_contents": [1, 2], "bytes_contents": [b""]}}]},
        InvalidInput,
        "not in bytes_contents",
    ),
    (
        "half typed",
        {"inputs": [FP32 | {"datatype": "FP16", "contents": {"fp32_contents": [1, 2]}}]},
        InvalidInput,
        "raw",
    ),
    (
        "out of range",
        {"inputs": [FP32 | {"datatype": "INT8", "contents": {"int_contents": [1, 300]}}]},
        InvalidInput,
        "x:",
    ),
    ("no datatype", {"inputs": [FP32 | {"datatype": ""}]}, InvalidInput, "^x: there is no datatype"),
    ("both", {"inputs": [FP32 | {"contents": {}}], "raw_input_contents": [b"1" * 8]}, InvalidInput, "the one or the"),
    ("too few raw", {"inputs": [FP32, FP32], "raw_input_contents": [b"1" * 8]}, InvalidInput, "1 raw_input_contents"),
    ("too many raw", {"inputs": [], "raw_input_contents": [b"1"]}, InvalidInput, "1 raw_input_contents came for 0"),
    ("short", {"inputs": [FP32], "raw_input_contents": [b"1" * 7]}, InvalidInput, "^x: 7 bytes came, .* has 8"),
    (
        "negative size",
        {"inputs": [FP32 | {"shape": [-2]}], "raw_input_contents": [b"1" * 8]},
        InvalidInput,
        "^x: shape",
    ),
    ("huge", {"inputs": [FP32 | {"shape": [2**62]}], "raw_input_contents": [b""]}, InvalidInput, "is larger than"),
    (
        "lying lengths",
        {"inputs": [FP32 | {"datatype": "BYTES"}], "raw_input_contents": [b"\xff\xff\xff\x7fa"]},
        InvalidInput,
        "^x: an element of BYTES is longer",
    ),
    (
        "shared memory",
        {"inputs": [FP32 | {"parameters": {"shared_memory_region": {"string_param": "r"}}}]},
        RequestError,
        "^x: the parameter 'shared_memory_region'",
    ),
    (
        "classification",
        {"outputs": [{"name": "y", "parameters": {"classification": {"int64_param": 3}}}]},
        RequestError,
        "^y: the parameter 'classification'",
    ),
    ("a parameter without a value", {"parameters": {"timeout": {}}}, RequestError, "'timeout' has no value"),
]


@pytest.mark.parametrize(("fields", "error", "pattern"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_what_is_refused(fields: dict[str, Any], error: type[Exception], pattern: str) -> None:
    with pytest.raises(error, match=pattern):
        translation.to_request(translation.receive(Request(**fields).SerializeToString()))


@pytest.mark.parametrize("message", [b"\xff" * 20, b"\x3a\x05abc", b"\x0a\x02\xff\xfe", b"\x0f"])
def test_bytes_that_are_no_message(message: bytes) -> None:
    with pytest.raises(RequestError, match="no message"):
        translation.receive(message)


ANSWER = InferAnswer([TensorValue("y", "FP32", (1, 2), b"\0" * 8), TensorValue("z", "BOOL", (1,), b"\1")], "3")


def test_answers() -> None:
    found = Response.FromString(translation.to_message(ANSWER, "m", "7"))
    assert (found.model_name, found.model_version, found.id) == ("m", "3", "7")
    told = [(one.name, one.datatype, [*one.shape]) for one in found.outputs]
    assert told == [("y", "FP32", [1, 2]), ("z", "BOOL", [1])]
    assert list(found.raw_output_contents) == [b"\0" * 8, b"\1"]


@pytest.mark.parametrize("is_final", [False, True])
def test_answers_of_streams(is_final: bool) -> None:
    message = translation.to_stream_message(ANSWER, "m", "7", is_final=is_final)
    found = schema.message("ModelStreamInferResponse").FromString(message)
    assert found.error_message == "" and found.infer_response.id == "7"
    assert found.infer_response.parameters[translation.FINAL].bool_param is is_final
    assert list(found.infer_response.raw_output_contents) == [b"\0" * 8, b"\1"]


def test_errors_of_streams() -> None:
    read = schema.message("ModelStreamInferResponse").FromString
    found = read(translation.stream_error(QueueFull("too many", retry_after_s=2.5), "m", "7"))
    parameters = found.infer_response.parameters
    assert (found.error_message, found.infer_response.id) == ("too many", "7")
    assert (parameters["samovar-code"].string_param, parameters["retry-after"].double_param) == ("queue_full", 2.5)
    found = read(translation.stream_error(FunctionRaised("boom"), "m", ""))
    assert "retry-after" not in found.infer_response.parameters


def test_whether_a_stream_wants_an_empty_end() -> None:
    def wants(value: dict[str, Any]) -> bool:
        return translation.wants_end(
            translation.receive(Request(parameters={translation.WANTS_END: value}).SerializeToString())
        )

    assert wants({"bool_param": True}) and not wants({"bool_param": False})
    with pytest.raises(RequestError, match="true or false"):
        wants({"int64_param": 1})


def test_a_message_of_countless_fields_is_refused_after_so_many() -> None:
    """Each of them takes time: 15 MB of two bytes each took 20 s."""
    field = b"\x78\x01"
    assert peeling.peel(field * peeling.MAX_FIELDS, 7) == (field * peeling.MAX_FIELDS, [])
    with pytest.raises(RequestError, match="at most"):
        peeling.peel(field * (peeling.MAX_FIELDS + 1), 7)
