"""Tensors in words of the Open Inference Protocol: what a version takes and gives, beside its JSON Schema.

This module does not know arrays, JSON or HTTP.
"""

from __future__ import annotations

from typing import Literal

from samovar.values import Struct

Datatype = Literal[
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64",
    "FP16", "BF16", "FP32", "FP64", "BYTES",
]  # fmt: skip


class TensorSpec(Struct, frozen=True, kw_only=True):
    """One tensor. shape: -1 where any size will do, with the batch dimension in front if the version takes batches."""

    name: str
    datatype: Datatype
    shape: list[int]
