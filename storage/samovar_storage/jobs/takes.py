"""What a worker knows of the jobs it was given, so that an answer of Redis that was lost is no job lost.

Every take from a queue has a number. One whose answer never came is asked again under the same number; the script then
tells all that the worker holds of that queue, and what is not known here is what the lost answer said.
This module does not know Redis.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from samovar_storage.jobs.layout import QueueName
from samovar_storage.jobs.records import Taken


class Takes:
    """Of the workers of one process (one, outside of tests)."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._unanswered: dict[tuple[str, QueueName], int] = {}
        self._locks: WeakValueDictionary[tuple[str, QueueName], asyncio.Lock] = WeakValueDictionary()
        self._held: set[tuple[str, str, int]] = set()

    @asynccontextmanager
    async def number(self, worker: str, queue: QueueName) -> AsyncIterator[int]:
        """Give the number for a take; one take from a queue at a time. A body that raises leaves it unanswered."""
        key = (worker, queue)
        lock = self._locks.setdefault(key, asyncio.Lock())  # as long as somebody has it, or waits for it
        async with lock:
            number = self._unanswered.setdefault(key, next(self._numbers))
            yield number
            self._unanswered.pop(key, None)

    def is_news(self, worker: str, job_id: str, token: int) -> bool:
        """Return whether the worker was not given this attempt yet."""
        return (worker, job_id, token) not in self._held

    def given(self, worker: str, taken: Iterable[Taken]) -> None:
        """The worker holds these."""
        self._held.update((worker, job.id, job.token) for job in taken)

    def settled(self, worker: str, taken: Taken) -> None:
        """The worker is done with it."""
        self._held.discard((worker, taken.id, taken.token))

    def left(self, worker: str) -> None:
        """The worker holds nothing any more."""
        self._held = {held for held in self._held if held[0] != worker}
        self._unanswered = {key: number for key, number in self._unanswered.items() if key[0] != worker}
