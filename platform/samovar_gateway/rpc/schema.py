"""The classes of the protocol's messages, made from `open_inference.proto` (compiled: `.binpb`, by `make proto`).

They live in a pool of their own: another library in this process may have registered messages of the same names, and
what is generated for one version of protobuf does not load with another. This module does not know what they mean.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_health.v1 import health_pb2

PACKAGE = "inference"
SERVICE = "inference.GRPCInferenceService"
SOURCE, COMPILED = "open_inference.proto", "open_inference.binpb"


def _pool() -> descriptor_pool.DescriptorPool:
    """Return a pool of everything that reflection tells."""
    pool = descriptor_pool.DescriptorPool()
    compiled = files(__package__).joinpath(COMPILED).read_bytes()
    for file in descriptor_pb2.FileDescriptorSet.FromString(compiled).file:
        pool.AddSerializedFile(file.SerializeToString())
    pool.AddSerializedFile(health_pb2.DESCRIPTOR.serialized_pb)
    return pool


POOL = _pool()


def message(name: str) -> Any:
    """Return the class of the message `name`, such as "ModelInferRequest"."""
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(f"{PACKAGE}.{name}"))


def methods() -> dict[str, tuple[Any, Any]]:
    """Return name → classes of request and response of every method."""
    found = POOL.FindServiceByName(SERVICE).methods
    return {one.name: (message(one.input_type.name), message(one.output_type.name)) for one in found}
