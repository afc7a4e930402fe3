"""What a resumable stream has told, and who reads it: what is kept, when more may be made, when it is over. Pure.

| the stream is    | more is made                      | what is kept                            | it ends
|------------------|-----------------------------------|-----------------------------------------|---------------
| read             | once the last event was taken     | what was taken, the newest `max_bytes`  | with its call
| away from readers| while less than `max_bytes` waits | everything                              | after `keep_s`

What was taken may be lost on its way, so it can be taken again: a reader arrives with the number it has. The newest
reader is the one that counts. All streams share a budget: once it is used up, those that are read keep FLOOR_BYTES,
those that are away make no more. This module does not know connections, clocks or what events are about.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Generic, TypeVar

from samovar.errors import RequestError, StreamGone

ReaderT = TypeVar("ReaderT")

FLOOR_BYTES = 64 * 1024
STREAM_BYTES = 8 * 1024  # of a stream that keeps nothing


class Budget:
    """What all streams of a process may keep. used: bytes kept now."""

    def __init__(self, max_bytes: int) -> None:
        self.used = 0
        self._max_bytes = max_bytes

    @property
    def is_used_up(self) -> bool:
        """Whether there is room for nothing more."""
        return self.used >= self._max_bytes


class Ledger(Generic[ReaderT]):
    """One stream's. first: number of the oldest event kept; last: of the newest, 0 = none yet. taken: what the reader
    there is has taken. reader: None = away, since `left_s`. is_ended: the last event is the end; is_told: a reader took
    all of it and stayed, nobody is owed anything. num_bytes: of all kept. `_s` are monotonic seconds."""

    def __init__(self, keep_s: float, max_bytes: int, budget: Budget) -> None:
        self.first = 1
        self.last = self.taken = self.num_bytes = 0
        self.reader: ReaderT | None = None
        self.left_s = 0.0
        self.is_ended = self.is_told = False
        self._keep_s = keep_s
        self._max_bytes = max_bytes
        self._budget = budget
        self._events: deque[bytes] = deque()
        self._num_ahead_bytes = 0  # of events that were not taken
        budget.used += STREAM_BYTES

    @property
    def has_room(self) -> bool:
        """Whether the next event may be made."""
        if self.is_ended:
            return False
        if self.reader is not None:
            return self.taken == self.last
        return self._num_ahead_bytes < self._max_bytes and not self._budget.is_used_up

    def add(self, event: bytes, *, ends: bool = False) -> None:
        """Keep one more event. ends: it is the last."""
        self._events.append(event)
        self.last += 1
        self.num_bytes += len(event)
        self._num_ahead_bytes += len(event)
        self._budget.used += len(event)
        self.is_ended = ends

    def arrive(self, reader: ReaderT, number: int) -> ReaderT | None:
        """Let `reader` go on after event `number`; return who read until now.

        Raises: RequestError if there was no such event, StreamGone if what follows it is not kept any more.
        """
        if number > self.last:
            raise RequestError(f"there is no event {number} yet: the last one is {self.last}")
        if number < self.first - 1:
            kept = f"only what came after event {self.first - 1}"
            raise StreamGone(f"what came after event {number} is not kept any more, {kept}")
        before, self.reader = self.reader, reader
        self.taken = number
        self._num_ahead_bytes = sum(map(len, islice(self._events, number - self.first + 1, None)))
        self.is_told = False
        return before

    def take(self, reader: ReaderT) -> tuple[int, bytes] | None:
        """Return the next event and its number, None if there is none for this reader now."""
        if reader is not self.reader or self.taken == self.last:
            return None
        self.taken += 1
        event = self._events[self.taken - self.first]
        self._num_ahead_bytes -= len(event)
        most = FLOOR_BYTES if self._budget.is_used_up else self._max_bytes
        while self.first <= self.taken and self.num_bytes - len(self._events[0]) >= most:
            self._drop()
        return self.taken, event

    def close(self) -> None:
        """Keep nothing: the stream is forgotten."""
        while self._events:
            self._drop()
        self._budget.used -= STREAM_BYTES

    def _drop(self) -> None:
        size = len(self._events.popleft())
        self.num_bytes -= size
        self._budget.used -= size
        self.first += 1

    def leave(self, reader: ReaderT, now_s: float, *, is_told: bool = False) -> None:
        """The reader is gone, if it was not replaced before. is_told: because it took the end."""
        if reader is self.reader:
            self.reader, self.left_s, self.is_told = None, now_s, is_told

    def is_due(self, now_s: float) -> bool:
        """Whether nobody came back in time: the stream is to be forgotten."""
        return self.reader is None and now_s >= self.left_s + self._keep_s
