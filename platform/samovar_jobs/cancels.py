"""Hears of running jobs that are to stop. What was published and not heard is read off the jobs.

This module does not know how a job is stopped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from samovar_jobs.attempts import Attempts
from samovar_storage import keys
from samovar_storage.subscribe import Message, subscribe

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from samovar_storage.jobs.redis_jobs import RedisJobs


async def follow_cancels(redis: Redis, store: RedisJobs, attempts: Attempts) -> None:
    """Stop jobs as told, until cancelled. Raises StoreUnavailable: run it again."""
    async for event in subscribe(redis, keys.CHANNEL_JOBS_CANCEL):
        if isinstance(event, Message):
            attempts.cancel(event.data.decode())
            continue
        for record in await store.get_many([*attempts.running]):
            if record is not None and record.canceling:
                attempts.cancel(record.id)
