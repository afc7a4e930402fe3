"""Which jobs wait, mirrored from their queues: heard of at once when a queue fills, counted every half second.

What is counted is what lies in the queues, never what came and went. When Redis does not answer, everything stays as
last known. This module decides nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import redis.asyncio as redis_async

from samovar.errors import SamovarError
from samovar_pool.job_load import Waiting, by_function
from samovar_pool.signals import has_grown
from samovar_storage import keys
from samovar_storage.jobs.layout import QueueName, parse_queue
from samovar_storage.subscribe import Resync, subscribe

logger = logging.getLogger("samovar.pool")

BUSY_POLL_S = 0.5  # while jobs wait
IDLE_POLL_S = 2.0  # else only in case a message was lost
MAX_SHARE = 0.05  # of Redis's time that counting may take, however many queues there are


class JobBacklog:
    """functions: function → queue → jobs that wait in it. read: returns all queues with waiting jobs.

    `on_wake` is called, on the event loop, when something may have to be done at once.
    """

    def __init__(self, read: Callable[[], Awaitable[Waiting]], on_wake: Callable[[], None]) -> None:
        self.functions: dict[str, dict[QueueName, int]] = {}
        self._read = read
        self._on_wake = on_wake
        self._poll_now = asyncio.Event()
        self._acted_on: dict[str, float] = {}

    async def follow(self, redis: redis_async.Redis) -> None:
        """Hear of queues that were empty and have jobs now, for ever. One that is new counts as one job until read."""
        async with aclosing(subscribe(redis, keys.CHANNEL_JOBS)) as events:
            async for event in events:
                if isinstance(event, Resync):
                    self._poll_now.set()
                else:
                    self.heard(event.data.decode(errors="replace"))

    def heard(self, name: str) -> None:
        """Jobs wait in a queue that was empty. Those of a function that has others waiting change nothing now."""
        queue = parse_queue(name)
        if queue is not None and queue.function not in self.functions:
            self.functions[queue.function] = {queue: 1}
            self._poll_now.set()
            self._on_wake()

    async def poll(self) -> None:
        """Count what waits for ever: often while jobs wait, else when a queue was heard of, or now and then."""
        while True:
            self._poll_now.clear()
            began_s = time.monotonic()
            await self.count()
            await asyncio.sleep(max(BUSY_POLL_S, (time.monotonic() - began_s) / MAX_SHARE))
            if not self.functions:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(IDLE_POLL_S):
                        await self._poll_now.wait()

    async def count(self) -> None:
        """Take over what waits now; wake the manager if that is much more than before, or something else."""
        try:
            self.functions = by_function(await self._read())
        except SamovarError as error:
            logger.warning("what jobs wait is not known now: %s", error.detail)
            return
        totals = {function: float(sum(queues.values())) for function, queues in self.functions.items()}
        if has_grown(self._acted_on, totals):
            self._acted_on = totals
            self._on_wake()
