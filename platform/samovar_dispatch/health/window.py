"""The newest calls of a version, at most so many and none older than so long: how many, how many failed, how many slow.

A good call costs two stores: what is too old is only taken out when somebody asks. This module does not know clocks,
breakers or what makes a call bad.
"""

from __future__ import annotations

from array import array

FAILED, SLOW = 1, 2  # flags of a call; 0 = it went well


class Window:
    """A ring over the newest `max_calls` calls (>= 1) within `window_s` seconds (> 0); exact after `trim`."""

    __slots__ = ("_at_s", "_flags", "_max_calls", "_next", "_window_s", "num", "num_failed", "num_slow")

    def __init__(self, max_calls: int, window_s: float) -> None:
        self._max_calls = max_calls
        self._window_s = window_s
        self._flags = bytearray()  # made at the first call: most versions of a large installation never have one
        self._at_s = array("d")
        self._next = 0
        self.num = self.num_failed = self.num_slow = 0

    def add(self, flags: int, now_s: float) -> None:
        """One more call ended; the oldest goes if the ring is full. flags: a sum of FAILED and SLOW."""
        position = self._next
        if self.num == self._max_calls:
            if old := self._flags[position]:
                self._uncount(old)
        else:
            self.num += 1
            if not self._flags:
                self._flags = bytearray(self._max_calls)
                self._at_s = array("d", bytes(8 * self._max_calls))
        self._flags[position] = flags
        self._at_s[position] = now_s
        position += 1
        self._next = position if position < self._max_calls else 0
        if flags:
            self.num_failed += flags & FAILED
            self.num_slow += flags >> 1

    def trim(self, now_s: float) -> None:
        """Take out every call that ended longer than the window ago."""
        oldest_s = now_s - self._window_s
        position = (self._next - self.num) % self._max_calls
        while self.num and self._at_s[position] < oldest_s:
            self._uncount(self._flags[position])
            self.num -= 1
            position = (position + 1) % self._max_calls

    def clear(self) -> None:
        """Forget every call."""
        self.num = self.num_failed = self.num_slow = 0

    def _uncount(self, flags: int) -> None:
        self.num_failed -= flags & FAILED
        self.num_slow -= flags >> 1
