"""What handlers say while they run: how far they are, log lines, items of output. Told on, within bounds.

Of progress the newest counts; lines and items of an attempt are told up to a number, then counted, and the count is
told at the end. What was said goes out five times a second at most, and before the job is settled; what Redis does not
take is dropped, since it is news, not a result. This module does not know how attempts end.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Protocol

from redis.asyncio import Redis

from samovar.errors import SamovarError
from samovar.jobs import JobEvent, Progress
from samovar.wire import LogLine
from samovar.wire import Progress as ProgressFrame
from samovar_storage.jobs.events import append_events, log_event, output_event, progress_event
from samovar_storage.jobs.records import Taken

log = logging.getLogger(__name__)

EVERY_S = 0.2


class Progressing(Protocol):
    """What of the store is needed here."""

    async def progress(self, worker: str, taken: Taken, progress: Progress) -> None:
        """See `samovar_storage.jobs.redis_jobs.RedisJobs`."""


class Said:
    """What one attempt has said and nobody was told yet. max_events: lines and items that are told in all.

    telling: held while some of it is on its way, so that all arrives in order.
    """

    def __init__(self, ear: Ear, worker: str, taken: Taken, max_events: int) -> None:
        self.worker = worker
        self.taken = taken
        self._ear = ear
        self._left = max_events
        self._events: list[JobEvent] = []
        self._progress: Progress | None = None
        self._num_dropped = 0
        self.telling = asyncio.Lock()

    def hear(self, message: ProgressFrame | LogLine) -> None:
        """The handler says this."""
        if isinstance(message, ProgressFrame):
            fraction = min(1.0, max(0.0, message.fraction))
            self._progress = Progress(fraction=fraction, message=message.message)
            self._ear.wake(self)
        else:
            self._add(log_event(message.line, time.time()))

    def hear_item(self, item: bytes) -> None:
        """The handler yields this."""
        self._add(output_event(item, time.time()))

    def add(self, event: JobEvent) -> None:
        """Something else is to be told, whatever the bounds."""
        self._events.append(event)
        self._ear.wake(self)

    def take(self, *, is_last: bool) -> tuple[Progress | None, list[JobEvent]]:
        """Return what is to be told now."""
        progress, self._progress = self._progress, None
        events, self._events = self._events, []
        if progress is not None:
            events.append(progress_event(progress, time.time()))
        if is_last and self._num_dropped:
            events.append(
                log_event(f"{self._num_dropped} more lines or items of this attempt are not kept", time.time())
            )
            self._num_dropped = 0
        return progress, events

    @property
    def is_silent(self) -> bool:
        """Whether nothing is to be told."""
        return not self._events and self._progress is None and not self._num_dropped

    def _add(self, event: JobEvent) -> None:
        if self._left > 0:
            self._left -= 1
            self.add(event)
        else:
            self._num_dropped += 1


class Ear:
    """One per worker: listens to all attempts."""

    def __init__(self, redis: Redis, store: Progressing, max_events: int) -> None:
        self._redis = redis
        self._store = store
        self._max_events = max_events
        self._speaking: dict[Said, None] = {}
        self._wake = asyncio.Event()

    def listen(self, worker: str, taken: Taken) -> Said:
        """Return what an attempt speaks to."""
        return Said(self, worker, taken, self._max_events)

    def wake(self, said: Said) -> None:
        """There is something to tell."""
        self._speaking[said] = None
        self._wake.set()

    async def run(self) -> None:
        """Tell what is said until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            speaking, self._speaking = self._speaking, {}
            await asyncio.gather(*(self.tell(said) for said in speaking))
            await asyncio.sleep(EVERY_S)

    async def tell(self, said: Said, *, is_last: bool = False) -> None:
        """All that was said is told, or dropped with a word in the log. is_last: nothing more will be said."""
        if is_last:
            self._speaking.pop(said, None)
        if said.is_silent and not said.telling.locked():
            return
        async with said.telling:
            progress, events = said.take(is_last=is_last)
            try:
                if progress is not None:
                    await self._store.progress(said.worker, said.taken, progress)
                await append_events(self._redis, said.taken.id, said.taken.token, events)
            except SamovarError as error:
                log.warning("job %s said something that nobody was told: %s", said.taken.id, error.detail)
