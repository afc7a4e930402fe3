"""The batch dimension: a request of N rows to a batch handler is N items, each batched with everybody else's, and the
answers become one again. Pure.

    text  BYTES [2]       ─► text BYTES [] · text BYTES []
    mask  INT64 [2, 8]    ─► mask INT64 [8] · mask INT64 [8]
    FP32 [384] · FP32 [384]  ─►  FP32 [2, 384]
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from samovar.errors import BadOutput, InvalidInput
from samovar.tensor_codec import Contents, TensorValue, elements, pack_elements

MAX_ROWS = 4096


def num_rows(inputs: Sequence[TensorValue]) -> int:
    """Return how many items a request has. Raises: InvalidInput if its tensors do not agree, or it has none or more
    than MAX_ROWS."""
    if not inputs:
        raise InvalidInput("$: a request to a batch handler has at least one input", path="$")
    first = inputs[0]
    for tensor in inputs:
        if not tensor.shape:
            raise InvalidInput(f"{tensor.name}: it has no batch dimension", path=tensor.name)
        if tensor.shape[0] != first.shape[0]:
            told = f"{tensor.name}: {tensor.shape[0]} rows came, {first.name} has {first.shape[0]}"
            raise InvalidInput(told, path=tensor.name)
    count = first.shape[0]
    if not 1 <= count <= MAX_ROWS:
        raise InvalidInput(f"{first.name}: {count} rows came, 1 to {MAX_ROWS} are possible", path=first.name)
    return count


def split(inputs: Sequence[TensorValue], count: int) -> list[list[TensorValue]]:
    """Return the items of a request of `count` rows; their contents are views on the request's."""
    columns = [
        [TensorValue(one.name, one.datatype, one.shape[1:], data) for data in _rows(one, count)] for one in inputs
    ]
    return [list(row) for row in zip(*columns, strict=True)]


def _rows(tensor: TensorValue, count: int) -> Iterator[Contents]:
    if tensor.datatype != "BYTES":
        view = memoryview(tensor.data)
        size = len(view) // count
        yield from (view[row * size : (row + 1) * size] for row in range(count))
        return
    each = math.prod(tensor.shape[1:])
    found = list(elements(tensor))
    yield from (pack_elements(found[row * each : (row + 1) * each]) for row in range(count))


def stack(answers: Sequence[Sequence[TensorValue]]) -> list[TensorValue]:
    """Return the answers to all items as one. Raises: BadOutput if they differ in names, datatypes or shapes."""
    columns = []
    for column in zip(*answers, strict=False):
        first = column[0]
        for row, one in enumerate(column):
            if (one.name, one.datatype, one.shape) != (first.name, first.datatype, first.shape):
                told = f"{one.name} of row {row} is {one.datatype} {list(one.shape)}"
                raise BadOutput(f"the rows do not make one tensor: {told}, of row 0 {list(first.shape)}")
        contents = column[0].data if len(column) == 1 else b"".join(one.data for one in column)
        columns.append(TensorValue(first.name, first.datatype, (len(column), *first.shape), contents))
    if any(len(answer) != len(columns) for answer in answers):
        raise BadOutput("the rows do not have the same outputs")
    return columns
