import time

import samovar as sv

failed_s: list[float] = []


@sv.function(
    name="breakable",
    scaling=sv.Scaling(min_instances=1, max_instances=1),
    fallback=sv.Fallback(cached=sv.Cached(max_stale_s=3600, key=["$.x"]), value=-1),
    example={"x": 0},
)
def breakable(x: int, broken: bool = False, report: bool = False) -> int | list[float]:
    """Doubles x; raises while it is told to be broken; says when it raised if asked to report."""
    if broken:
        failed_s.append(time.monotonic())
        raise RuntimeError("broken")
    return failed_s if report else 2 * x
