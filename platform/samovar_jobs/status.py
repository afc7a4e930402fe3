"""What a worker says of itself about once a second: what it holds, how fast it works, what it leaves alone and why.

Routes and the command line read it (`samovar_storage/jobs/facts.py`). This module does not know what they make of it.
"""

from __future__ import annotations

import asyncio
import time

from redis.asyncio import Redis

from samovar_jobs.attempts import Attempts
from samovar_jobs.lease import Lease
from samovar_jobs.taker import Taker
from samovar_storage.jobs.facts import tell_worker
from samovar_storage.jobs.records import Hold, WorkerStatus

TELL_S = 1.0


async def tell_status(redis: Redis, lease: Lease, taker: Taker, attempts: Attempts) -> None:
    """Tell until cancelled. Raises StoreUnavailable: run it again."""
    while True:
        await lease.held()
        await tell_worker(redis, status(lease, taker, attempts, time.monotonic(), time.time()))
        await asyncio.sleep(TELL_S)


def status(lease: Lease, taker: Taker, attempts: Attempts, now_s: float, at_s: float) -> WorkerStatus:
    """Return how the worker is. now_s: monotonic; at_s: unix seconds."""
    holds = {
        name: Hold(reason=pause.reason, until_s=at_s + pause.until_s - now_s)
        for name, pause in taker.pauses.held(now_s).items()
    }
    if not taker.may_take:
        holds[""] = Hold(reason="paused")
    return WorkerStatus(
        worker=lease.worker,
        at_s=at_s,
        max_running=taker.max_held,
        running={function: number for function, number in attempts.held.items() if number},
        holds=holds,
        taken_per_s=taker.tempo.per_s(now_s),
        counts=taker.counts | attempts.counts,
    )
