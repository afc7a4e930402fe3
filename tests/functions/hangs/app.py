import time

import samovar as sv


@sv.function(name="hangs", limits=sv.Limits(timeout_s=5, overrun_grace_s=0.3))
def hangs(sleep_s: float) -> str:
    time.sleep(sleep_s)
    return "awake"
