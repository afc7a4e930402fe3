"""Hears of running jobs that are to stop. What was published and not heard is read off the jobs every few seconds.

This module does not know how a job is stopped.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from samovar_jobs.attempts import Attempts
from samovar_storage import keys
from samovar_storage.subscribe import Message, subscribe

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from samovar_storage.jobs.redis_jobs import RedisJobs


POLL_S = 5.0


async def follow_cancels(redis: Redis, store: RedisJobs, attempts: Attempts) -> None:
    """Stop jobs as told, until cancelled. Raises StoreUnavailable: run it again."""
    async for event in subscribe(redis, keys.CHANNEL_JOBS_CANCEL):
        if isinstance(event, Message):
            attempts.cancel(event.data.decode(errors="replace"))
        else:
            await _stop_cancelled(store, attempts)


async def poll_cancels(store: RedisJobs, attempts: Attempts) -> None:
    """Stop what was cancelled while nobody heard it, until cancelled. Raises StoreUnavailable: run it again."""
    while True:
        await asyncio.sleep(POLL_S)
        await _stop_cancelled(store, attempts)


async def _stop_cancelled(store: RedisJobs, attempts: Attempts) -> None:
    for record in await store.get_many([job_id for job_id, _ in attempts.running]):
        if record is not None and record.canceling:
            attempts.cancel(record.id)
