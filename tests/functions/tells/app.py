import asyncio
from collections.abc import AsyncIterator

import samovar as sv


@sv.function(name="tells", example={"n": 1})
async def tells(n: int, ctx: sv.Context, fail_at: int = -1) -> AsyncIterator[dict[str, int]]:
    ctx.log("the kettle is on")
    for i in range(n):
        if i == fail_at:
            raise ValueError("spilt")
        ctx.progress(i / n, f"cup {i}")
        yield {"i": i}
        await asyncio.sleep(0.15)
    ctx.progress(1.0)
