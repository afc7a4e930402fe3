import asyncio

import samovar as sv


@sv.function(name="async-batched", batch=sv.Batch(max_size=4), example={"x": 1})
async def async_batched(x: list[int]) -> list[int]:
    await asyncio.sleep(0)
    if 13 in x:
        raise ValueError("thirteen")
    return [value * 2 for value in x]
