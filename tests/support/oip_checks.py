"""What every client of the Open Inference Protocol must find, whichever way it speaks: real `tritonclient`s over HTTP,
its asyncio client and gRPC pass the same checks.

A driver puts one of them in front of a platform that serves FUNCTIONS; each `check_…` below is one test of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

FUNCTIONS = (
    "arrays",
    "mirrors",
    "row_vectors",
    "countdown_tensors",
    "plain_dicts",
)  # of tests/functions, served before

Tensors = dict[str, Any]

ARRAYS: dict[str, tuple[str, np.ndarray[Any, Any]]] = {
    "bools": ("BOOL", np.array([[True, False], [False, True]])),
    "uint8": ("UINT8", np.array([0, 255], "u1")),
    "uint16": ("UINT16", np.array([0, 65535], "u2")),
    "uint32": ("UINT32", np.array([0, 2**32 - 1], "u4")),
    "uint64": ("UINT64", np.array([0, 2**64 - 1], "u8")),
    "int8": ("INT8", np.array([-128, 127], "i1")),
    "int16": ("INT16", np.array([-(2**15), 2**15 - 1], "i2")),
    "int32": ("INT32", np.array([[-(2**31)], [2**31 - 1]], "i4")),
    "int64": ("INT64", np.array([-(2**63), 2**63 - 1], "i8")),
    "fp16": ("FP16", np.array([0.5, -65504], "f2")),
    "fp32": ("FP32", np.arange(24, dtype="f4").reshape(2, 3, 4)),
    "fp64": ("FP64", np.array([1e300, -0.1], "f8")),
    "texts": ("BYTES", np.array([["tea", "чай"], ["", "茶 🍵"]], object)),
}


class Driver:
    """One client. module: its own `InferInput` and `InferRequestedOutput`. run: makes a value of what calls return.

    binary: whether tensors may be said to travel in binary or as JSON (HTTP). metadata: options of calls that return
    documents, so that these are dictionaries. statuses: what the client calls our statuses, those of HTTP unless given.
    """

    def __init__(
        self,
        module: ModuleType,
        client: Any,
        headers: dict[str, str],
        *,
        run: Callable[[Any], Any] = lambda value: value,
        binary: bool = True,
        metadata: dict[str, Any] | None = None,
        statuses: Mapping[int, str] | None = None,
    ) -> None:
        self.module = module
        self.client = client
        self.headers = headers
        self.run = run
        self.binary = binary
        self.metadata = metadata or {}
        self.statuses = statuses or {status: str(status) for status in range(400, 600)}

    def input(self, name: str, datatype: str, array: Any, **more: Any) -> Any:
        """Return an input of this client."""
        tensor = self.module.InferInput(name, list(array.shape), datatype)
        tensor.set_data_from_numpy(array, **more)
        return tensor

    def output(self, name: str, **more: Any) -> Any:
        """Return a wish for an output."""
        return self.module.InferRequestedOutput(name, **more)

    def infer(self, model: str, inputs: list[Any], **more: Any) -> Any:
        """Return the client's own result."""
        return self.run(self.client.infer(model, inputs, headers=dict(self.headers), **more))

    def ask(self, name: str, *args: Any) -> Any:
        """Return what another method of the client gives, as plain Python."""
        options = {"headers": self.headers} | (self.metadata if name.startswith("get_") else {})
        return self.run(getattr(self.client, name)(*args, **options))

    def rejects(self, model: str, inputs: list[Any], pattern: str, status: int = 422, **more: Any) -> None:
        """Pass if the request is refused with a status and a message like this."""
        with pytest.raises(InferenceServerException) as caught:
            self.infer(model, inputs, **more)
        assert re.search(pattern, caught.value.message()), caught.value.message()
        assert caught.value.status() == self.statuses[status]

    def modes(self) -> list[dict[str, bool]]:
        """Return the ways an input may be sent."""
        return [{"binary_data": True}, {"binary_data": False}] if self.binary else [{}]


def text(*items: str) -> np.ndarray[Any, Any]:
    """Return a tensor of BYTES as clients hold it."""
    return np.array([item.encode() for item in items], object)


def _as_text(item: str | bytes) -> str:
    return item if isinstance(item, str) else item.decode()


def check_server(driver: Driver) -> None:
    assert driver.ask("is_server_live") and driver.ask("is_server_ready")
    assert driver.ask("get_server_metadata")["name"] == "samovar"


def check_models(driver: Driver) -> None:
    assert driver.ask("is_model_ready", "arrays") and driver.ask("is_model_ready", "arrays", "1")
    assert not driver.ask("is_model_ready", "arrays", "7")
    found = driver.ask("get_model_metadata", "row-vectors")
    assert (found["name"], found["versions"], found["platform"]) == ("row-vectors", ["1"], "samovar")
    tensors = [(one["name"], one["datatype"], [*map(int, one["shape"])]) for one in found["inputs"] + found["outputs"]]
    assert tensors == [("text", "BYTES", [-1]), ("vector", "FP32", [-1, 3]), ("batch_size", "INT64", [-1])]


def check_config(driver: Driver) -> None:
    for more in ((), ("1",)):
        found = driver.ask("get_model_config", "countdown-tensors", *more)
        config = found.get("config", found)  # gRPC has it in a message of its own
        tensors = [(one["name"], one["data_type"], [*map(int, one["dims"])]) for one in config["output"]]
        assert tensors == [("number", "TYPE_INT64", [1]), ("word", "TYPE_STRING", [1])]
        assert config["model_transaction_policy"] == {"decoupled": True}
        assert (config["name"], config["platform"]) == ("countdown-tensors", "samovar")
    with pytest.raises(InferenceServerException, match="cannot be asked by tensors"):
        driver.ask("get_model_config", "plain-dicts")


def check_index(driver: Driver) -> None:
    found = driver.ask("get_model_repository_index")
    models = found["models"] if isinstance(found, dict) else found
    states = {one["name"]: one["state"] for one in models}
    assert states["arrays"] == "READY" and states["plain-dicts"] == "UNAVAILABLE"


def check_unknown_model(driver: Driver) -> None:
    with pytest.raises(InferenceServerException, match="did you mean 'arrays'") as caught:
        driver.ask("get_model_metadata", "arrayz")
    assert caught.value.status() == driver.statuses[404]
    inputs = [driver.input("x", "FP32", np.ones((1, 4), "f4"))]
    driver.rejects("arrayz", inputs, "did you mean 'arrays'", 404)
    driver.rejects("arrays", inputs, "no version '7'", 404, model_version="7")


def check_arrays(driver: Driver) -> None:
    x = np.arange(8, dtype="f4").reshape(2, 4)
    for mode in driver.modes():
        given = [driver.input("x", "FP32", x, **mode), driver.input("factor", "FP32", np.array([0.5], "f4"), **mode)]
        result = driver.infer("arrays", given, request_id="id-7", model_version="1")
        assert np.array_equal(result.as_numpy("scaled"), x / 2)
        assert result.as_numpy("scaled").dtype == np.float32
        assert result.as_numpy("total").tolist() == [28.0]
        assert result.as_numpy("is_writable").tolist() == [False]
        assert result.as_numpy("is_view").tolist() == [True]


def check_outputs(driver: Driver) -> None:
    given = [driver.input("x", "FP32", np.ones((1, 4), "f4"))]
    result = driver.infer("arrays", given, outputs=[driver.output("total")])
    assert result.as_numpy("total").tolist() == [4.0]
    assert result.as_numpy("scaled") is None
    driver.rejects("arrays", given, "^nothing: there is no output", outputs=[driver.output("nothing")])


def check_datatypes(driver: Driver) -> None:
    for mode in driver.modes():
        inputs = [driver.input(name, datatype, array, **mode) for name, (datatype, array) in ARRAYS.items()]
        result = driver.infer("mirrors", inputs)
        for name, (datatype, array) in ARRAYS.items():
            found = result.as_numpy(name)
            if datatype == "BYTES":
                found = np.vectorize(_as_text, otypes=[object])(found)
            assert np.array_equal(found, array), name
            assert found.dtype == array.dtype


def check_bytes(driver: Driver) -> None:
    blobs = np.array([b"\xff\x00", b"", b"tea"], object)
    result = driver.infer("mirrors", [driver.input("blobs", "BYTES", blobs)])
    assert [bytes(one) for one in result.as_numpy("blobs")] == [*blobs]
    driver.rejects("mirrors", [driver.input("texts", "BYTES", blobs.reshape(3, 1))], "^texts: .* UTF-8")


def check_empty(driver: Driver) -> None:
    empty = np.zeros((0, 4), "f4")
    result = driver.infer("arrays", [driver.input("x", "FP32", empty)])
    assert result.as_numpy("scaled").shape == (0, 4)


def check_batches(driver: Driver) -> None:
    for shape in ((5,), (5, 1)):
        words = text("a", "bb", "", "dddd", "eeeee").reshape(shape)
        result = driver.infer("row-vectors", [driver.input("text", "BYTES", words)])
        assert result.as_numpy("vector").tolist() == [[n] * 3 for n in (1, 2, 0, 4, 5)]
        assert result.as_numpy("batch_size").shape == (5,)
    assert result.as_numpy("batch_size").max() > 1


def check_batch_mates(driver: Driver) -> None:
    driver.rejects("row-vectors", [driver.input("text", "BYTES", text("a", "poison"))], "this one is spilt", 500)
    result = driver.infer("row-vectors", [driver.input("text", "BYTES", text("a"))])
    assert result.as_numpy("vector").tolist() == [[1, 1, 1]]


def check_wrong_inputs(driver: Driver) -> None:
    x = driver.input("x", "FP32", np.ones((1, 4), "f4"))
    driver.rejects("arrays", [driver.input("x", "FP64", np.ones((1, 4)))], "^x: FP32 is expected, not FP64")
    driver.rejects("arrays", [driver.input("x", "FP32", np.ones((4, 1), "f4"))], r"^x: shape \[-1, 4\] is expected")
    driver.rejects("arrays", [driver.input("y", "FP32", np.ones(1, "f4"))], "^y: there is no input of this name.* x")
    driver.rejects("arrays", [x, x], "^x: the input came twice")
    driver.rejects("arrays", [driver.input("factor", "FP32", np.ones(1, "f4"))], "^x: the input is missing")
    words = driver.input("text", "BYTES", text())
    driver.rejects("row-vectors", [words], "^text: 0 rows came")
    driver.rejects("arrays", [x], "sequence_", 400, sequence_id=7, sequence_start=True)
    driver.rejects("plain-dicts", [x], "cannot be asked by tensors", 400)


def check_function_fails(driver: Driver) -> None:
    x = driver.input("x", "FP32", np.ones((1, 4), "f4"))
    for fail, pattern in (
        ("boom", "boom"),
        ("dtype", "scaled: FP32 is declared"),
        ("shape", r"scaled: shape \[-1, 4\]"),
    ):
        driver.rejects("arrays", [x, driver.input("fail", "BYTES", text(fail))], pattern, 500)


def check_deadline(driver: Driver) -> None:
    x = driver.input("x", "FP32", np.ones((1, 4), "f4"))
    driver.rejects("arrays", [x], "'timeout' is a number of microseconds", 400, timeout=-1)
    assert driver.infer("arrays", [x], timeout=20_000_000).as_numpy("total").tolist() == [4.0]


def check_no_key(driver: Driver) -> None:
    headers, driver.headers = driver.headers, {}
    try:
        driver.rejects("arrays", [driver.input("x", "FP32", np.ones((1, 4), "f4"))], "send an API key", 401)
    finally:
        driver.headers = headers


def check_stream_refused(driver: Driver) -> None:
    driver.rejects("countdown-tensors", [driver.input("n", "INT64", np.array([3]))], "stream", 400)


CHECKS: list[Callable[[Driver], None]] = [value for name, value in list(globals().items()) if name.startswith("check_")]
