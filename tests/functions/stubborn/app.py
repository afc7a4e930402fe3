import asyncio
import contextlib

import samovar as sv


@sv.function(name="stubborn", limits=sv.Limits(overrun_grace_s=0.2), scaling=sv.Scaling(target_concurrency=4))
async def stubborn(sleep_s: float, ignores: bool = False) -> str:
    while ignores:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(sleep_s)
    await asyncio.sleep(sleep_s)
    return "slept"
