"""How an instance is, as it tells its manager: counts, idle time, memory. Pushed when it changed, or is old.

This module does not know connections, deadlines or handlers.
"""

from __future__ import annotations

import time

from samovar import wire
from samovar.lifecycle import State
from samovar_instance import devices, introspect

STATS_MAX_AGE_S = 5.0


class Vitals:
    """Counts what ended and remembers what was told last."""

    def __init__(self) -> None:
        self.completed = 0
        self.failed = 0
        self._idle_since_s = time.monotonic()
        self._told: wire.Stats | None = None
        self._told_at_s = 0.0

    def became_idle(self) -> None:
        """The last call in flight has ended."""
        self._idle_since_s = time.monotonic()

    def tell(self, state: State, in_flight: int, overrun_s: float) -> wire.Stats:
        """Return the Stats of this moment and remember that they were told."""
        self._told = self._stats(state, in_flight, overrun_s)
        self._told_at_s = time.monotonic()
        return self._told

    def news(self, state: State, in_flight: int, overrun_s: float) -> wire.Stats | None:
        """Return Stats to be told, or None while nothing but time and memory has moved for STATS_MAX_AGE_S."""
        is_old = time.monotonic() - self._told_at_s >= STATS_MAX_AGE_S
        key = (state, in_flight, self.completed, self.failed, overrun_s > 0)
        if self._told is not None and not is_old and key == _key(self._told):
            return None
        return self.tell(state, in_flight, overrun_s)

    def _stats(self, state: State, in_flight: int, overrun_s: float) -> wire.Stats:
        return wire.Stats(
            state=state,
            in_flight=in_flight,
            completed=self.completed,
            failed=self.failed,
            idle_s=0.0 if in_flight else time.monotonic() - self._idle_since_s,
            overrun_s=overrun_s,
            memory_bytes=introspect.memory_bytes(),
            device_memory_bytes=devices.peak_memory_bytes(),
        )


def _key(stats: wire.Stats) -> tuple[str, int, int, int, bool]:
    return stats.state, stats.in_flight, stats.completed, stats.failed, stats.overrun_s > 0
