import threading
import time
from typing import Any

import samovar as sv

kept: list[sv.Context] = []


def facts(ctx: sv.Context, num: int) -> Any:
    remaining_s = min(ctx.remaining_s, 1000.0)
    return [ctx.job_id, ctx.attempt, ctx.token, ctx.request_id, round(remaining_s), ctx.cancelled]


def polls(ctx: sv.Context, num: int) -> None:
    while not ctx.cancelled:
        time.sleep(0.002)


def raises(ctx: sv.Context, num: int) -> None:
    while True:
        ctx.raise_if_cancelled()


def spins(ctx: sv.Context, num: int) -> None:
    """Hears nothing."""
    ctx.progress(0.0, "spinning")
    until_s = time.monotonic() + num
    while time.monotonic() < until_s:
        pass


def reports(ctx: sv.Context, num: int) -> None:
    for done in range(num + 1):
        ctx.progress(done / num, f"row {done}")


def logs(ctx: sv.Context, num: int) -> None:
    for number in range(num):
        ctx.log(f"line {number} " + "é" * 5000 * (number == 0))


def helped(ctx: sv.Context, num: int) -> None:
    helper = threading.Thread(target=lambda: (ctx.log("from a helper"), ctx.progress(0.5)))
    helper.start()
    helper.join()


def keeps(ctx: sv.Context, num: int) -> None:
    """Speaks through the context of the call before."""
    for old in kept:
        old.log("too late")
        old.progress(1.0)
    kept[:] = [ctx]


DEEDS = {deed.__name__: deed for deed in (facts, polls, raises, spins, reports, logs, helped, keeps)}


@sv.function(name="works", limits=sv.Limits(timeout_s=30, overrun_grace_s=0.3), example={"deed": "facts"})
def works(deed: str, ctx: sv.Context, num: int = 0) -> Any:
    return DEEDS[deed](ctx, num)
