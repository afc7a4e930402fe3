"""Arrays of numpy: a declared shape, an optional number, and what a handler may do with what it gets."""

from __future__ import annotations

from typing import Annotated, TypedDict

import numpy as np

import samovar as sv


class Scaled(TypedDict):
    scaled: Annotated[np.ndarray, sv.Tensor("FP32", [-1, 4])]
    total: float
    is_writable: bool
    is_view: bool


@sv.function
def arrays(x: Annotated[np.ndarray, sv.Tensor("FP32", [-1, 4])], factor: float = 2.0, fail: str = "") -> Scaled:
    if fail == "dtype":
        return {"scaled": x.astype(str), "total": 0.0, "is_writable": False, "is_view": False}  # type: ignore[typeddict-item]
    if fail == "shape":
        return {"scaled": x[:, :2], "total": 0.0, "is_writable": False, "is_view": False}
    if fail:
        raise ValueError(fail)
    return {
        "scaled": x.astype("f8") * factor,
        "total": float(x.sum()),
        "is_writable": bool(x.flags.writeable),
        "is_view": x.base is not None,
    }
