"""Whether memory that a call ran out of is gone for good: leaked, not merely asked for.

A call that wants more than there is fails, its memory comes back and the instance goes on. When most of the room that
`load` left is still taken afterwards, the calls to come will fail, too: such an instance is to be replaced.
This module does not know calls, and not how an instance is replaced.
"""

from __future__ import annotations

import resource

from samovar_instance.confine import inherited_data_bytes

MAX_TAKEN_SHARE = 0.5


class Room:
    """What was free under the memory limit when it was made: after `load`, before the first call."""

    def __init__(self) -> None:
        self._limit_bytes = resource.getrlimit(resource.RLIMIT_DATA)[0]
        self._taken_bytes = inherited_data_bytes()

    def is_gone(self) -> bool:
        """Return whether more than half of that room is taken now; False where there is no limit."""
        if self._limit_bytes == resource.RLIM_INFINITY:
            return False
        return has_leaked(self._taken_bytes, inherited_data_bytes(), self._limit_bytes)


def has_leaked(before_bytes: int, now_bytes: int, limit_bytes: int) -> bool:
    """Return whether more than MAX_TAKEN_SHARE of the room under `limit_bytes` was taken since `before_bytes`."""
    return now_bytes - before_bytes > MAX_TAKEN_SHARE * (limit_bytes - before_bytes)
