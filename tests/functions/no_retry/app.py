import time

import samovar as sv


@sv.function(name="no-retry", retry_on_crash=False, example={"sleep_s": 0})
def no_retry(sleep_s: float) -> str:
    time.sleep(sleep_s)
    return "done"
