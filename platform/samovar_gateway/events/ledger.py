"""What a resumable stream has told, and who reads it: what is kept, when more may be made, when it is over. Pure.

| the stream is    | more is made                   | what is kept                                 | it ends
|------------------|--------------------------------|----------------------------------------------|-----------------
| read             | once the last event was taken  | what was taken, the newest `max_bytes` of it | with its call
| away from readers| while `max_bytes` are not full | everything                                   | after `keep_s`

What was taken may be lost on its way, so it can be taken again: a reader arrives with the number it has. The newest
reader is the one that counts. This module does not know connections, clocks or what events are about.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from samovar.errors import RequestError, StreamGone

ReaderT = TypeVar("ReaderT")


class Ledger(Generic[ReaderT]):
    """One stream's. first: number of the oldest event kept; last: of the newest, 0 = none yet. taken: what the reader
    there is has taken. reader: None = away, since `left_s`. is_ended: the last event is the end; is_told: a reader took
    all of it and stayed. num_bytes: of all kept. `_s` are monotonic seconds."""

    def __init__(self, keep_s: float, max_bytes: int) -> None:
        self.first = 1
        self.last = self.taken = self.num_bytes = 0
        self.reader: ReaderT | None = None
        self.left_s = 0.0
        self.is_ended = self.is_told = False
        self._keep_s = keep_s
        self._max_bytes = max_bytes
        self._events: deque[bytes] = deque()

    @property
    def has_room(self) -> bool:
        """Whether the next event may be made."""
        if self.is_ended:
            return False
        return self.num_bytes < self._max_bytes if self.reader is None else self.taken == self.last

    def add(self, event: bytes, *, ends: bool = False) -> None:
        """Keep one more event. ends: it is the last."""
        self._events.append(event)
        self.last += 1
        self.num_bytes += len(event)
        self.is_ended = ends

    def arrive(self, reader: ReaderT, number: int) -> ReaderT | None:
        """Let `reader` go on after event `number`; return who read until now.

        Raises: RequestError if there was no such event, StreamGone if what follows it is not kept any more.
        """
        if number > self.last:
            raise RequestError(f"there is no event {number} yet: the last one is {self.last}")
        if number < self.first - 1:
            raise StreamGone(f"what came after event {number} is not kept any more, only what came after {self.first}")
        before, self.reader = self.reader, reader
        self.taken = number
        self.is_told = False
        return before

    def take(self, reader: ReaderT) -> tuple[int, bytes] | None:
        """Return the next event and its number, None if there is none for this reader now."""
        if reader is not self.reader or self.taken == self.last:
            return None
        self.taken += 1
        event = self._events[self.taken - self.first]
        while self.num_bytes > self._max_bytes and self.first <= self.taken:
            self.num_bytes -= len(self._events.popleft())
            self.first += 1
        return self.taken, event

    def leave(self, reader: ReaderT, now_s: float, *, is_told: bool = False) -> None:
        """The reader is gone, if it was not replaced before. is_told: because it took the end."""
        if reader is self.reader:
            self.reader, self.left_s, self.is_told = None, now_s, is_told

    def is_due(self, now_s: float) -> bool:
        """Whether nobody came back in time: the stream is to be forgotten."""
        return self.reader is None and now_s >= self.left_s + self._keep_s

    @property
    def is_missed(self) -> bool:
        """Whether somebody may be on the way back: nobody reads, and the end was not told."""
        return self.reader is None and not self.is_told
