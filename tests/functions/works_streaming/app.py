import time
from collections.abc import Iterator

import samovar as sv


@sv.function(name="works-streaming", limits=sv.Limits(timeout_s=30, overrun_grace_s=0.3), example={"num": 1})
def works_streaming(num: int, ctx: sv.Context | None = None) -> Iterator[int]:
    try:
        for number in range(num):
            if ctx is not None:
                ctx.progress((number + 1) / num)
            yield number
            time.sleep(0.005)
    finally:
        print(f"closed, cancelled: {ctx is not None and ctx.cancelled}", flush=True)
