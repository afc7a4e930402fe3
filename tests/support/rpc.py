"""A bare gRPC client of a gateway: messages as the tests like them, broken ones included."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import grpc

from samovar_gateway.rpc import schema
from support.gateway import ADMIN_KEY

INFER, STREAM = (f"/{schema.SERVICE}/{name}" for name in ("ModelInfer", "ModelStreamInfer"))
Request, Response = schema.message("ModelInferRequest"), schema.message("ModelInferResponse")
StreamResponse = schema.message("ModelStreamInferResponse")
KEY = (("authorization", f"Bearer {ADMIN_KEY}"),)


class Rpc:
    """One channel. Calls carry the admin key unless told otherwise."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.channel = channel

    def start(self, message: bytes, metadata: Any = KEY, timeout_s: float | None = 30.0, **more: Any) -> Any:
        """Begin a ModelInfer of these bytes; return the call."""
        return self.channel.unary_unary(INFER).future(message, timeout=timeout_s, metadata=metadata, **more)

    def infer(self, message: Any, metadata: Any = KEY, timeout_s: float | None = 30.0) -> Any:
        """Return the answer. Raises: grpc.RpcError."""
        return Response.FromString(self.start(message.SerializeToString(), metadata, timeout_s).result())

    def refused(self, message: bytes, metadata: Any = KEY, **more: Any) -> tuple[str, str, dict[str, str]]:
        """Return status, details and trailing metadata of a call that must fail."""
        error = self.start(message, metadata, **more).exception()
        assert error is not None, "it was answered"
        return error.code().name, error.details(), dict(error.trailing_metadata() or ())

    def stream(self, messages: Iterator[bytes], metadata: Any = KEY) -> Any:
        """Return the answers to what `messages` yields, as they come."""
        call = self.channel.stream_stream(STREAM, response_deserializer=StreamResponse.FromString)
        return call(messages, timeout=60, metadata=metadata)

    def ask(self, method: str, **fields: Any) -> Any:
        """Return the answer of another method."""
        asked, answered = schema.methods()[method]
        call = self.channel.unary_unary(f"/{schema.SERVICE}/{method}", response_deserializer=answered.FromString)
        return call(asked(**fields).SerializeToString(), timeout=60, metadata=KEY)


@contextmanager
def connected(address: str, options: Mapping[str, int] | None = None) -> Iterator[Rpc]:
    """A client for the body of a `with`, on a connection of its own."""
    settings = {
        "grpc.use_local_subchannel_pool": 1,
        "grpc.max_receive_message_length": -1,
        "grpc.max_send_message_length": -1,
    } | dict(options or {})
    with grpc.insecure_channel(address, options=[*settings.items()]) as channel:
        yield Rpc(channel)


def request(model: str, request_id: str = "", **inputs: tuple[str, list[int], dict[str, Any]]) -> Any:
    """Return a ModelInferRequest with typed contents: name=(datatype, shape, {field: values})."""
    tensors = [
        {"name": name, "datatype": datatype, "shape": shape, "contents": contents}
        for name, (datatype, shape, contents) in inputs.items()
    ]
    return Request(model_name=model, id=request_id, inputs=tensors)


def texts(*items: str) -> tuple[str, list[int], dict[str, Any]]:
    """Return an input of BYTES."""
    return "BYTES", [len(items)], {"bytes_contents": [item.encode() for item in items]}


def floats(*items: float) -> tuple[str, list[int], dict[str, Any]]:
    """Return an input of FP32."""
    return "FP32", [len(items)], {"fp32_contents": items}


def integers(*items: int) -> tuple[str, list[int], dict[str, Any]]:
    """Return an input of INT64."""
    return "INT64", [len(items)], {"int64_contents": items}
