import asyncio
import time

import samovar as sv


@sv.function(
    name="async-echo",
    limits=sv.Limits(overrun_grace_s=0.3),
    scaling=sv.Scaling(target_concurrency=4),
    example={"text": "a"},
)
async def async_echo(text: str, sleep_s: float = 0.0, block_s: float = 0.0) -> str:
    try:
        await asyncio.sleep(sleep_s)
    except asyncio.CancelledError:
        print("cancelled", text, flush=True)
        raise
    time.sleep(block_s)  # noqa: ASYNC251 (this is what the test is about)
    return text
