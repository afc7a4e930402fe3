import asyncio
from collections.abc import AsyncIterator

import samovar as sv


@sv.function(name="async-streams", scaling=sv.Scaling(target_concurrency=3), example={"n": 1})
async def async_streams(n: int, pause_s: float = 0.0) -> AsyncIterator[dict[str, int]]:
    try:
        for i in range(n):
            yield {"i": i}
            await asyncio.sleep(pause_s)
    finally:
        print("stream closed", flush=True)
