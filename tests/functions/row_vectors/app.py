"""A batch handler: texts become vectors of their lengths, so that whoever asks knows its own."""

from __future__ import annotations

from typing import Annotated, TypedDict

import numpy as np

import samovar as sv


class Row(TypedDict):
    vector: Annotated[np.ndarray, sv.Tensor("FP32", [3])]
    batch_size: int


@sv.function(batch=sv.Batch(max_size=8, max_wait_ms=20))
def row_vectors(text: list[str]) -> list[Row | Exception]:
    return [_row(one, len(text)) for one in text]


def _row(text: str, batch_size: int) -> Row | Exception:
    if text == "poison":
        return ValueError("this one is spilt")
    return {"vector": np.full(3, len(text), "f4"), "batch_size": batch_size}
