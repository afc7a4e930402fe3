import ctypes
import math
import time
from typing import Any, Literal

import samovar as sv

kept: list[bytes] = []


@sv.function(
    name="breaks",
    limits=sv.Limits(timeout_s=2, overrun_grace_s=0.5),
    resources=sv.Resources(memory_gib=0.5),
    scaling=sv.Scaling(max_instances=2),
    example={"deed": "answer"},
)
def breaks(deed: Literal["answer", "sleep", "leak", "segfault", "loop", "nan", "huge", "none"]) -> Any:
    if deed == "leak":
        kept.append(bytes(1) * (64 << 20))
    if deed == "segfault":
        ctypes.string_at(0)
    while deed == "loop":
        math.sqrt(2.0)
    if deed == "sleep":
        time.sleep(0.3)
    return {"nan": [float("nan")], "huge": "x" * (50 << 20 if deed == "huge" else 0), "none": None}.get(deed, "done")
