"""When a request that does no harm twice is sent again, and after which pause. Pure: time and chance are passed in.

This module does not know what is asked of whom.
"""

from __future__ import annotations

from samovar.errors import ConnectError, DeadlineExceeded, IdempotencyRunning, RateLimited, SamovarError, Unavailable

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
# longer than a gateway takes to restart
PATIENCE_S = 60.0


def is_passing(error: SamovarError) -> bool:
    """Return whether the same request may succeed a little later: nobody there, overloaded, or still at work on it."""
    is_silent = isinstance(error, DeadlineExceeded) and error.extra.get("phase") == "connect"
    return is_silent or isinstance(error, ConnectError | Unavailable | RateLimited | IdempotencyRunning)


def pause_s(error: SamovarError, attempt: int, left_s: float, chance: float) -> float | None:
    """Return how long to wait before the next try, None when there is no point in another or no time left for it.

    Args:
        attempt: tries so far minus one, >= 0. left_s: seconds until patience ends. chance: within [0, 1].
    Source: exponential back-off with full jitter, but no sooner than a `Retry-After` says.
    """
    if not is_passing(error):
        return None
    jittered = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(attempt, 16)) * chance
    wanted = max(jittered, error.retry_after_s or 0.0)
    return wanted if wanted < left_s else None
