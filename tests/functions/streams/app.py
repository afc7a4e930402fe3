import time
from collections.abc import Iterator

import samovar as sv


@sv.function(name="streams")
def streams(n: int, pause_s: float = 0.0, fail_at: int = -1) -> Iterator[dict[str, int]]:
    try:
        for i in range(n):
            if i == fail_at:
                raise ValueError("spilt")
            yield {"i": i}
            time.sleep(pause_s)
    finally:
        print("stream closed", flush=True)
