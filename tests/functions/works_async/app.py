import asyncio
from typing import Any

import samovar as sv


@sv.function(
    name="works-async",
    limits=sv.Limits(timeout_s=30, overrun_grace_s=0.3),
    scaling=sv.Scaling(target_concurrency=2),
    example={"seconds": 0},
)
async def works_async(ctx: sv.Context, seconds: float) -> Any:
    ctx.progress(0.5, "half")
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        print(f"{ctx.job_id} was cancelled: {ctx.cancelled}", flush=True)
        raise
    return ctx.job_id
