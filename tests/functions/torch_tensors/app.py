"""Tensors of torch: bfloat16 has no counterpart in numpy."""

from __future__ import annotations

from typing import Annotated, TypedDict

import torch

import samovar as sv


class Doubled(TypedDict):
    doubled: Annotated[torch.Tensor, sv.Tensor("BF16", [-1])]
    shape: list[int]


@sv.function
def torch_tensors(x: Annotated[torch.Tensor, sv.Tensor("BF16", [-1])], more: torch.Tensor | None = None) -> Doubled:
    return {"doubled": (x * 2).float(), "shape": [*(more.shape if more is not None else ())]}
