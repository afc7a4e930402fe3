import math
import time

import samovar as sv

calls: list[list[float]] = []


def cost(x: float) -> float:
    if x == 13:
        raise ValueError("13 cannot be weighed")
    return abs(x)


@sv.function(name="batched", batch=sv.Batch(max_size=8, max_wait_ms=20, cost=cost, max_cost=1000))
def batched(x: list[float]) -> list[float | Exception]:
    """Square roots. -1: the whole batch raises; -2: an error of its own; -3: one output too few; 0.5: slow."""
    if -1 in x:
        raise ValueError("cannot take the root of -1")
    if 0.5 in x:
        time.sleep(1.0)
    if -3 in x:
        return []
    return [ValueError("minus two") if value == -2 else math.sqrt(value) for value in x]
