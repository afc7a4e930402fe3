"""What a handler has said and its client was not told yet: in order, within bounds.

Only the latest progress of a row counts. Of lines beyond MAX_LINES only the number is kept, and told in their place.
This module does not know sockets or clocks.
"""

from __future__ import annotations

from collections import deque

from samovar.wire import LogLine, Progress

MAX_LINES = 128  # of at most 8 KiB each


class Heard:
    """Messages, each with the number of items that came before it."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Progress | LogLine]] = deque()
        self._num_lines = 0
        self._num_dropped = 0

    def add(self, num_before: int, message: Progress | LogLine) -> None:
        """Keep what was said after `num_before` items, as far as there is room."""
        waiting = self._waiting
        if isinstance(message, LogLine):
            if self._num_lines >= MAX_LINES or self._num_dropped:
                self._num_dropped += 1
                return
            self._num_lines += 1
        elif waiting and isinstance(waiting[-1][1], Progress):
            waiting.pop()
        waiting.append((num_before, message))

    def take(self, num_told: int) -> Progress | LogLine | None:
        """Return the next message that came before item number `num_told` (from 0), None if there is none."""
        if not self._waiting:
            num, self._num_dropped = self._num_dropped, 0
            return LogLine(0, f"[samovar] {num} lines more: the client did not keep up") if num else None
        if self._waiting[0][0] > num_told:
            return None
        message = self._waiting.popleft()[1]
        self._num_lines -= isinstance(message, LogLine)
        return message
