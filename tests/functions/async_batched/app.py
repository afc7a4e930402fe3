import asyncio

import samovar as sv


@sv.function(name="async-batched", batch=sv.Batch(max_size=4), example={"x": 1})
async def async_batched(x: list[int]) -> list[int]:
    """Twice each. 13: raises; 60: takes a minute."""
    try:
        await asyncio.sleep(60 if 60 in x else 0)
    except asyncio.CancelledError:
        print("batch cancelled", flush=True)
        raise
    if 13 in x:
        raise ValueError("thirteen")
    return [value * 2 for value in x]
