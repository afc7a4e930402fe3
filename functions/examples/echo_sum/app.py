"""The smallest useful function: a list of numbers in, their sum out."""

from typing import TypedDict

import samovar as sv


class Sum(TypedDict):
    sum: float


@sv.function(name="echo-sum", example={"x": [1.0, 2.0]})
def echo_sum(x: list[float]) -> Sum:
    """Return the sum of `x`."""
    return {"sum": sum(x)}
