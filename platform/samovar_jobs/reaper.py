"""What every worker does for all of them, in turn: gives up silent workers, queues what is due, sweeps.

    reap      the jobs of a worker that has not beaten for a lease go back to the heads of their queues
    promote   scheduled jobs that are due are queued
    sweep     what nobody keeps any more is deleted

Each step is one script, harmless when several workers take it at once. This module does not know how jobs are run.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from samovar_jobs.lease import BEAT_S, LEASE_BEATS, Lease
from samovar_jobs.silence import Silence

if TYPE_CHECKING:
    from samovar_storage.jobs.redis_jobs import RedisJobs

log = logging.getLogger(__name__)

LOOK_S = 0.5
MAX_GAP_S = 2.0
PROMOTE_S = 1.0
MIN_GAP_S = 0.01
SWEEP_S = 5.0


class Reaper:
    """One per worker. num_reaped: jobs it has taken back from silent workers."""

    def __init__(self, store: RedisJobs, lease: Lease) -> None:
        self.num_reaped = 0
        self._store = store
        self._lease = lease
        self._silence = Silence(LEASE_BEATS * BEAT_S, MAX_GAP_S)

    async def run(self) -> None:
        """Look for silent workers until cancelled. Raises StoreUnavailable: run it again."""
        while True:
            beats = await self._store.beats()
            for worker, count in self._silence.look(beats, time.monotonic()):
                if worker != self._lease.worker:
                    await self._reap(worker, count)
            await asyncio.sleep(LOOK_S)

    async def _reap(self, worker: str, count: int) -> None:
        returned = await self._store.reap(worker, count)
        self.num_reaped += len(returned)
        log.warning("worker %s has fallen silent: %d jobs are queued again", worker, len(returned))


class Promoter:
    """One per worker: queues jobs when they are due, to the instant if this worker knows of them."""

    def __init__(self, store: RedisJobs, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock
        self._due_at_s = float("inf")
        self._wake = asyncio.Event()

    def note(self, due_at_s: float) -> None:
        """A job is due at this unix second."""
        if due_at_s < self._due_at_s:
            self._due_at_s = due_at_s
            self._wake.set()

    async def run(self) -> None:
        """Promote until cancelled. Raises StoreUnavailable: run it again."""
        while True:
            self._due_at_s = float("inf")
            self._wake.clear()
            await self._store.promote_due()
            await self._until_due()

    async def _until_due(self) -> None:
        """Return a second from now, or as soon as a job that is known of is due."""
        end_s = time.monotonic() + PROMOTE_S
        while (left_s := min(end_s - time.monotonic(), self._due_at_s - self._clock())) > 0:
            try:
                async with asyncio.timeout(max(MIN_GAP_S, left_s)):
                    await self._wake.wait()
                self._wake.clear()
            except TimeoutError:
                continue


async def sweep(store: RedisJobs) -> None:
    """Delete what has expired, until cancelled; at once while there is more. Raises StoreUnavailable: run it again."""
    while True:
        if not await store.sweep():
            await asyncio.sleep(SWEEP_S)
