import asyncio
import time
from collections.abc import AsyncIterator
from typing import TypedDict

import samovar as sv


class Stamp(TypedDict):
    at_s: float
    filling: str


@sv.function(name="stamps", example={"n": 1}, scaling=sv.Scaling(target_concurrency=16))
async def stamps(n: int, pause_s: float = 0.0, num_bytes: int = 0) -> AsyncIterator[Stamp]:
    """Say n times when it was said, by the clock that all processes of a machine share."""
    filling = "." * num_bytes
    for _ in range(n):
        await asyncio.sleep(pause_s)
        yield {"at_s": time.monotonic(), "filling": filling}
