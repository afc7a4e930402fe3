import time

import samovar as sv


@sv.function(name="naps", scaling=sv.Scaling(min_instances=2, max_instances=2))
def naps(values: list[float]) -> float:
    time.sleep(0.02)
    return sum(values)
