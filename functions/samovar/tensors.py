"""Tensors in words of the Open Inference Protocol: what a version takes and gives, beside its JSON Schema.

    embedding: Annotated[numpy.ndarray, sv.Tensor("FP32", [384])]      what a hint alone does not say

This module does not know arrays, hints, JSON or HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from samovar.errors import InvalidInput
from samovar.values import Struct, require

Datatype = Literal[
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64",
    "FP16", "BF16", "FP32", "FP64", "BYTES",
]  # fmt: skip

DATATYPES: frozenset[str] = frozenset(get_args(Datatype))
ITEM_BYTES: dict[str, int] = {
    "BOOL": 1, "UINT8": 1, "UINT16": 2, "UINT32": 4, "UINT64": 8, "INT8": 1, "INT16": 2, "INT32": 4, "INT64": 8,
    "FP16": 2, "BF16": 2, "FP32": 4, "FP64": 8,
}  # fmt: skip
MAX_DIMS = 32
MAX_ELEMENTS = 1 << 31  # more than any body carries; dimensions beside a zero count, too


class TensorSpec(Struct, frozen=True, kw_only=True):
    """One tensor. shape: -1 where any size will do, with the batch dimension in front if the version takes batches.

    any_rank: the last dimension stands for any number of them, none included.
    """

    name: str
    datatype: Datatype
    shape: list[int]
    any_rank: bool = False


class Tensor(Struct, frozen=True, kw_only=False):
    """What `typing.Annotated` adds to a hint. shape: of one item, without the batch dimension; -1 where any size will
    do; None = any shape."""

    datatype: Datatype
    shape: list[int] | None = None

    def __post_init__(self) -> None:
        require(self.datatype in DATATYPES, f"sv.Tensor: there is no datatype {self.datatype!r}")
        sizes = [] if self.shape is None else self.shape
        is_shape = isinstance(sizes, list) and all(type(size) is int and size >= -1 for size in sizes)
        require(is_shape and len(sizes) < MAX_DIMS, "sv.Tensor: a shape is a list of sizes, -1 where any size will do")

    def __hash__(self) -> int:
        """Hints are kept in sets by `typing`."""
        return hash((self.datatype, tuple(self.shape or ())))


def num_elements(shape: Sequence[int], path: str) -> int:
    """Return the product of a shape that a client sent. Raises: InvalidInput with `path` if it is no shape."""
    if len(shape) > MAX_DIMS:
        raise InvalidInput(f"{path}: a tensor has at most {MAX_DIMS} dimensions, not {len(shape)}", path=path)
    product, bound = 1, 1
    for size in shape:
        if type(size) is not int or size < 0:
            raise InvalidInput(f"{path}: shape {_told(shape)} has a size that is no whole number >= 0", path=path)
        product *= size
        bound *= max(size, 1)
        if bound > MAX_ELEMENTS:
            raise InvalidInput(f"{path}: shape {_told(shape)} is larger than {MAX_ELEMENTS} elements", path=path)
    return product


def fits(shape: Sequence[int], spec: TensorSpec) -> bool:
    """Return whether a tensor of this shape is one that `spec` describes. A size of 1 may stand for no dimension at the
    end: [n, 1] where [n] is expected, and [] where [1] is."""
    wanted = spec.shape
    if spec.any_rank:
        wanted = wanted[:-1]
        shape = shape[: len(wanted)]
    elif len(shape) == len(wanted) + 1 and shape[-1] == 1:
        shape = shape[:-1]
    elif [*wanted] == [1] and not shape:
        return True
    return len(shape) == len(wanted) and all(want in (-1, size) for size, want in zip(shape, wanted, strict=True))


def _told(shape: Sequence[int]) -> str:
    text = str([*shape[:8]])
    return text if len(text) <= 200 else text[:200] + "…"
