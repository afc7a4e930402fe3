"""Gives back what it gets: a tensor of every datatype, each of which may be missing."""

from __future__ import annotations

from typing import Annotated, TypedDict

import numpy as np

import samovar as sv


class Tensors(TypedDict, total=False):
    bools: Annotated[np.ndarray, sv.Tensor("BOOL")]
    uint8: Annotated[np.ndarray, sv.Tensor("UINT8")]
    uint16: Annotated[np.ndarray, sv.Tensor("UINT16")]
    uint32: Annotated[np.ndarray, sv.Tensor("UINT32")]
    uint64: Annotated[np.ndarray, sv.Tensor("UINT64")]
    int8: Annotated[np.ndarray, sv.Tensor("INT8")]
    int16: Annotated[np.ndarray, sv.Tensor("INT16")]
    int32: Annotated[np.ndarray, sv.Tensor("INT32")]
    int64: Annotated[np.ndarray, sv.Tensor("INT64")]
    fp16: Annotated[np.ndarray, sv.Tensor("FP16")]
    fp32: np.ndarray
    fp64: Annotated[np.ndarray, sv.Tensor("FP64")]
    bf16: Annotated[list[float], sv.Tensor("BF16")]
    texts: list[list[str]]
    blobs: list[bytes]


@sv.function
def mirrors(tensors: Tensors) -> Tensors:
    return tensors
